"""Lanes with packs and seeks that a real Broker does not produce on demand."""

import asyncio
from collections import deque
from datetime import UTC

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition
from mqbridge.tubemq.adapter.inbound import TubeMQLane
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage


def pack(offset: int, *bodies: bytes) -> Pack:
    messages = [
        TransferedMessage(messageId=offset + n, checkSum=checksum(body), payLoadData=body, flag=0)
        for n, body in enumerate(bodies)
    ]
    return Pack(messages, offset, 0, 1120, 30)


class Held:
    """A held partition that delivers each pack until it is confirmed. A message takes 28 bytes of the index."""

    def __init__(self, *packs: Pack) -> None:
        self.packs = deque(packs)
        self.pack = packs[0]
        self.releasing, self.revoked = asyncio.Event(), asyncio.Event()
        self.commits = 0
        self.fails = 0

    async def wait_until_settled(self) -> None: ...

    def release_pack_bytes(self) -> None: ...

    async def fetch(self) -> Pack:
        self.pack = self.packs[0]
        return self.pack

    async def commit(self, *, consumed: bool) -> int:
        assert consumed
        self.commits += 1
        if self.fails:
            self.fails -= 1
            raise ClusterError("not now", Failure.RETRY)
        self.packs.popleft()
        return self.pack.offset + 28 * len(self.pack.messages)

    def confirm(self) -> None:
        self.packs.popleft()

    max_offset = 1120

    async def seek(self, offset: int) -> int:
        if self.fails:
            raise ClusterError("not now", Failure.RETRY)
        return min(offset, self.packs[0].offset)


def lane_of(held: Held) -> TubeMQLane:
    return TubeMQLane(held, Partition("c", "t", "1:0", 0), UTC)  # type: ignore[arg-type]


def bodies(batch: Batch) -> list[bytes | None]:
    return [message.payload for message in batch.messages]


async def test_a_failed_seek_skips_no_message() -> None:
    held = Held(pack(28, b"0", b"1", b"2"))
    lane = lane_of(held)
    held.fails = 1
    with pytest.raises(ClusterError):
        await lane.seek((28, 2))
    assert bodies(await lane.receive()) == [b"0", b"1", b"2"]
    held.fails = 0
    await lane.seek((28, 2))
    batch = await lane.receive()
    assert (batch.first, bodies(batch)) == ((28, 2), [b"2"])


async def test_a_pack_at_another_offset_than_the_seek_is_delivered_whole() -> None:
    """A Broker that lost messages continues at its own end; the index was counted in a pack that no longer exists."""
    held = Held(pack(56, b"new 0", b"new 1", b"new 2"), pack(140, b"new 3"))
    lane = lane_of(held)
    await lane.seek((280, 2))
    batch = await lane.receive()
    assert (batch.first, bodies(batch)) == ((56, 0), [b"new 0", b"new 1", b"new 2"])
    lane.acknowledge(batch)
    assert bodies(await lane.receive()) == [b"new 3"]


async def test_an_index_beyond_the_pack_skips_messages_of_the_next_pack() -> None:
    """A Broker that has written part of a pack to its file meanwhile delivers two packs instead."""
    held = Held(pack(28, b"0", b"1"), pack(84, b"2", b"3", b"4"))
    lane = lane_of(held)
    await lane.seek((28, 3))
    held.fails = 1  # a commit without a response: the pack is redelivered, and the same messages are left out
    batch = await lane.receive()
    assert (batch.first, bodies(batch), held.commits) == ((84, 1), [b"3", b"4"], 2)


async def test_a_batch_can_be_decoded_twice() -> None:
    held = Held(pack(28, b"some bytes", b"1"))
    lane = lane_of(held)
    await lane.seek((28, 1))
    batch = await lane.receive()
    before = bodies(batch)
    batch.release_messages()
    assert not batch.is_decoded
    assert bodies(batch) == before == [b"1"]
    assert batch.held_bytes > batch.size > 0
