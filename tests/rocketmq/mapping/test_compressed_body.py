"""Compressed bodies of a target: which messages are compressed, in which order they are sent, and which limits count."""

import os

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.mapping.compressed_body import MIN_COMPRESSED_BYTES, compress_body
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import EncodedRequest, encode
from mqbridge.rocketmq.wire import compression
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.compression import ZLIB, decompress
from mqbridge.rocketmq.wire.record import SysFlag

NOW = 1_700_000_000_000
SMALL, LARGE, RANDOM = b"small", b"large " * 1000, os.urandom(6000)


def bodies(requests: list[EncodedRequest]) -> list[bytes]:
    """Return the decompressed bodies of all messages."""
    found: list[bytes] = []
    for request in requests:
        if request.is_batch:
            found += [body for _, body, _ in decode_batch(request.body)]
        elif request.sys_flag & SysFlag.COMPRESSED:
            found.append(decompress(request.sys_flag & ZLIB, request.body))
        else:
            found.append(request.body)
    return found


@pytest.mark.parametrize("name", list(compression.NAMES))
def test_large_bodies_are_compressed_and_sent_alone_in_their_place(name: str) -> None:
    payloads = [SMALL, SMALL, LARGE, SMALL, RANDOM, SMALL, LARGE, LARGE]
    requests, failures = encode([Message(each) for each in payloads], None, Limits(codec=compression.NAMES[name]), NOW)
    assert failures == []
    assert bodies(requests) == payloads
    assert [(list(request.indexes), bool(request.sys_flag)) for request in requests] == [
        ([0, 1], False),
        ([2], True),
        ([3, 4, 5], False),  # what does not become smaller stays in the batch
        ([6], True),
        ([7], True),
    ]


@pytest.mark.parametrize("codec", [None, compression.ZSTD])
def test_without_large_bodies_nothing_changes(codec: int | None) -> None:
    messages = [Message(SMALL), Message(b"x" * (MIN_COMPRESSED_BYTES - 1)), Message(None), Message(b"")]
    [request], failures = encode(messages, None, Limits(codec=codec), NOW)
    assert (request.is_batch, request.count, request.sys_flag, failures) == (True, 4, 0, [])


def test_the_limit_of_a_message_counts_the_compressed_body() -> None:
    limits = Limits(max_bytes=5000, max_message_bytes=5000, codec=compression.ZSTD)
    later = NOW + 60_000
    messages = [Message(LARGE), Message(RANDOM), Message(LARGE, deliver_at=later), Message(RANDOM, deliver_at=later)]
    requests, failures = encode(messages, None, limits, NOW)
    assert [(list(request.indexes), request.delayed) for request in requests] == [([0], False), ([2], True)]
    assert bodies(requests) == [LARGE, LARGE]
    assert [failure.index for failure in failures] == [1, 3]
    assert all("6000 bytes," in failure.reason for failure in failures)
    _, failures = encode([Message(os.urandom(6000) + LARGE)], None, limits, NOW)
    assert "bytes when compressed, the broker takes 5000" in failures[0].reason


def test_a_compressed_message_keeps_what_a_message_that_is_sent_alone_has() -> None:
    limits = Limits(codec=compression.ZLIB, requires_keys=True)
    messages = [Message(LARGE, [("a", "b")], "k", position=(7,)), Message(LARGE)]
    [request], [failure] = encode(messages, "here|t|0|", limits, NOW, lambda _: ("ID", 0))
    for part in (b"KEYS\x01k", b"here|t|0|7", b"mqbridge.order", b"UNIQ_KEY\x01ID0000"):
        assert part in request.properties
    assert failure.index == 1, "a compacted topic needs a key"


def test_bodies_that_do_not_become_smaller_stay_as_they_are() -> None:
    assert compress_body(compression.ZSTD, RANDOM) == (RANDOM, 0)
    assert compress_body(None, LARGE) == (LARGE, 0)
