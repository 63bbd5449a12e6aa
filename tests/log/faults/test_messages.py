"""Payloads tell which message they belong to, whole and in fragments."""

from __future__ import annotations

import pytest

from tests.log.faults.messages import TAG, UNIT_BYTES, MessageId, parse, payload, tags

ID = MessageId(2, 3, 70, 12345)


@pytest.mark.parametrize("size", [TAG.size, TAG.size + 1, UNIT_BYTES, 1000, 300_000])
def test_a_payload_tells_its_message(size: int) -> None:
    assert len(payload(ID, size)) == size
    assert parse(payload(ID, size)) == ID


@pytest.mark.parametrize("index", [0, 3, TAG.size, UNIT_BYTES + 5, 999])
def test_a_changed_payload_is_none(index: int) -> None:
    changed = bytearray(payload(ID, 1000))
    changed[index] ^= 4
    assert parse(bytes(changed)) != ID


def test_exchanged_parts_of_a_payload_are_noticed() -> None:
    data = payload(ID, 1000)
    assert parse(data[UNIT_BYTES : 2 * UNIT_BYTES] + data[:UNIT_BYTES] + data[2 * UNIT_BYTES :]) is None


def test_a_fragment_tells_its_message() -> None:
    fragment = bytes(100) + payload(ID, 5000)[333:600] + bytes(100)
    assert {id_ for _, id_ in tags(fragment)} == {ID}
    assert not list(tags(bytes(1000)))
