"""Pulls that may decompress to very large bodies are split into parts; no message is lost or read twice."""

import asyncio
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Partition
from mqbridge.rocketmq.adapter import lane as lane_module
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.client.consumer import queue_state
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_state import QueueState
from mqbridge.rocketmq.client.consumer.unpacked_size import max_unpacked_record_bytes
from mqbridge.rocketmq.mapping.stored import decode_pulls
from mqbridge.rocketmq.wire.batch import encode_element
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.compression import MAX_PLAIN_BYTES, compress
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES, Record, SysFlag, encode_record

QUEUE = Queue("T", "b", 0)
CODECS = (0, 0x100, 0x200, 0x300)
both_ways = pytest.mark.usefixtures("both_ways")


def compressed_record(body: bytes, offset: int, codec: int = 0) -> bytes:
    data = compress(codec, body)
    return encode_record(Record("T", data, sys_flag=SysFlag.COMPRESSED | codec, queue_offset=offset))


def pulled(records: Sequence[bytes], first: int, next_: int) -> PulledRecords:
    return PulledRecords(QUEUE, b"".join(records), first, next_)


@both_ways
def test_a_pull_that_decompresses_to_too_much_is_read_in_parts() -> None:
    data = zlib.compress(bytes(MAX_PLAIN_BYTES))
    sys_flag = SysFlag.COMPRESSED
    count = MAX_UNPACKED_BYTES // MAX_PLAIN_BYTES + 1
    records = [encode_record(Record("T", data, sys_flag=sys_flag, queue_offset=offset)) for offset in range(count)]
    whole = pulled(records, 0, count)
    with pytest.raises(RemoteProtocolError, match="unpack to more"):
        decode_pulls([whole])
    parts = whole.split(MAX_UNPACKED_BYTES)
    assert len(parts) == 2
    found = 0
    for part in parts:
        for message in decode_pulls([part]):
            assert (message.position, message.defect, len(message.payload or b"")) == ((found,), None, MAX_PLAIN_BYTES)
            found += 1
    assert found == count


@st.composite
def records(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """Draw consecutive records (plain, compressed, inner batches), and the offset after the last."""
    made, offset = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 8))):
        body, sys_flag, count = bytes(draw(st.integers(0, 3000))), 0, 1
        if draw(st.booleans()):
            count = draw(st.integers(1, 4))
            body, sys_flag = encode_element(body, b"") * count, SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
        if draw(st.booleans()):
            codec = draw(st.sampled_from(CODECS))
            body, sys_flag = compress(codec, body), sys_flag | SysFlag.COMPRESSED | codec
        made.append(encode_record(Record("T", body, sys_flag=sys_flag, queue_offset=offset)))
        offset += count + draw(st.integers(0, 1))  # a compacted topic has holes
    return made, offset


@settings(deadline=None)
@given(records(), st.integers(0, 3), st.integers(1, 100_000))
def test_the_parts_contain_all_messages_once(made: tuple[list[bytes], int], begin: int, limit: int) -> None:
    bodies, end = made
    whole = pulled(bodies, begin, end)
    parts = whole.split(limit)
    assert b"".join(part.body for part in parts) == whole.body
    assert [part.first for part in parts] == [begin, *(max(begin, part.next) for part in parts[:-1])]
    assert parts[-1].next == end
    assert [m.position for part in parts for m in decode_pulls([part])] == [m.position for m in decode_pulls([whole])]
    for part in parts:
        assert part.max_unpacked_bytes <= limit or part.body in bodies
        taken = sum(len(message.payload or b"") for message in decode_pulls([part]))
        assert taken <= part.max_unpacked_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_the_upper_bound_of_the_decompressed_size_holds(codec: int) -> None:
    for size in (0, 1, 1000, 1 << 20):
        assert size <= max_unpacked_record_bytes(len(compress(codec, bytes(size))), SysFlag.COMPRESSED | codec)


def test_a_queue_delivers_the_parts_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_state, "MAX_UNPACKED_BYTES", 2 * (MAX_PLAIN_BYTES + 512))
    state = QueueState()
    state.start(0, first_start=False)
    state.apply_response(
        state.pull(0.0, with_commit=False), 5, 5, pulled([compressed_record(b"x", offset, 0x200) for offset in range(5)], 0, 5)
    )
    ends = []
    while (part := state.take(0.0)) is not None:
        ends.append((part.first, part.next, part.stored))
    assert ends == [(0, 2, 2), (2, 4, 2), (4, 5, 1)]
    assert state.buffered_bytes == 0


async def test_pulls_are_not_joined_beyond_the_decompressed_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "MAX_UNPACKED_BYTES", 2 * MAX_PLAIN_BYTES)
    waiting = [pulled([compressed_record(b"x", offset, 0x200)], offset, offset + 1) for offset in range(5)]

    async def receive() -> PulledRecords:
        return waiting.pop(0)

    assigned: Any = SimpleNamespace(
        ended=asyncio.Event(),
        state=SimpleNamespace(run=1),
        receive=receive,
        take=lambda: waiting.pop(0) if waiting else None,
        release_budget=lambda _: None,
        holds_budget=False,
        releasing=asyncio.Event(),
    )
    lane = RocketMQLane(Partition("c", "T", "b:0", 0), assigned)
    assert [(await lane.receive()).count for _ in range(3)] == [2, 2, 1]
