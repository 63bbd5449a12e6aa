"""What the support table says that differs over a backing, shown by clients: one function for each row, found by its feature."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.groups.store import GroupStore
from mqbridge.listener import publishers
from mqbridge.listener.listener import Listener
from mqbridge.listener.server import load_servers
from mqbridge.listener.support import Backing, Support
from mqbridge.pulsar.server.support import BACKINGS, TABLE
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.entry import read_metadata
from mqbridge.pulsar.wire.frame import Frame, encode_command
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandSeek, CommandSubscribe, MessageIdData, MessageMetadata
from mqbridge.pulsar.wire.schemas import json_record
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.server.avro_pairs import field, record
from tests.pulsar.server.serving import RawClient, Serving, batch_frame, entry_frame, listener_settings, payload_of, until

LIMIT_PADDING = 10 << 10
STEADY_POLLS, POLL_S = 20, 0.1
"""A partition does not move any more when it is seen so many times where it was."""
DELAY_S = 5.0
"""Delay of a message: the next one has to be stored meanwhile."""


class Gateways:
    """Gateways of one backing, each with one listener, and a topic with one partition."""

    def __init__(self, cluster: Cluster, backing: Backing, folder: Path, stack: AsyncExitStack) -> None:
        self.cluster, self.backing = cluster, backing
        self.topic_name = f"t{uuid4().hex[:8]}"
        self._folder, self._stack, self._count = folder, stack, 0

    @property
    def topic(self) -> str:
        """The topic's name for clients."""
        return f"persistent://public/default/{self.topic_name}"

    async def open(self, **changes: object) -> Serving:
        """Start a gateway; it has a state file of its own."""
        self._count += 1
        store = GroupStore(self._folder / f"groups-{self._count}.db")
        self._stack.push_async_callback(store.close)
        changes = {"owns_groups": self.backing.groups == "own", "group": "{group}-{topic}"} | changes
        settings = listener_settings(dead_letter_cluster=self.cluster.name, cluster=self.cluster.name, **changes)
        listener = Listener(settings, load_servers()["pulsar"], self.cluster, self.cluster, store, f"gateway-{self._count}")
        listener.bind()
        await listener.start()
        served = Serving(listener, self.cluster)
        self._stack.push_async_callback(self.stop, served)
        return served

    async def stop(self, served: Serving) -> None:
        """Stop a gateway in order."""
        for client in served.clients:
            await client.close()
        await served.listener.close(asyncio.get_running_loop().time() + 5)

    async def client(self, **changes: object) -> RawClient:
        """Start a gateway, and connect to it."""
        return await (await self.open(**changes)).connect()


@asynccontextmanager
async def gateways(cluster: Cluster, backing: Backing, folder: Path) -> AsyncIterator[Gateways]:
    """Stop all gateways at the end, the newest first."""
    async with AsyncExitStack() as stack:
        yield Gateways(cluster, backing, folder, stack)


Show = Callable[[Gateways], Awaitable[None]]
SHOWN: dict[str, Show] = {}
"""How the difference of a row is shown, by its feature."""


def shows(feature: str) -> Callable[[Show], Show]:
    """Register the function that shows the difference of this row."""

    def register(show: Show) -> Show:
        assert feature not in SHOWN
        SHOWN[feature] = show
        return show

    return register


def differing(system: str) -> list[tuple[str, Backing]]:
    """Return the rows that differ over this system, with each backing of it."""
    return [
        (row.feature, backing)
        for row in TABLE
        for backing in BACKINGS
        if backing.system == system and row.cell(backing).support is Support.DIFFERS
    ]


async def show(feature: str, cluster: Cluster, backing: Backing, folder: Path) -> None:
    """Show the difference of a row."""
    async with gateways(cluster, backing, folder) as opened:
        await SHOWN[feature](opened)


async def frame_of(client: RawClient) -> Frame:
    return await client.next(lambda frame: frame.type == BaseCommand.MESSAGE)


def metadata_of(frame: Frame) -> MessageMetadata:
    return read_metadata(frame.data, frame.entry_offset)[0]


# --- producers ------------------------------------------------------------------------------------------------------------


@shows("Producers: deduplication of named ones (`sends.deduplicate`)")
async def deduplication(opened: Gateways) -> None:
    named = {"producer_name": "n", "user_provided_producer_name": True}
    first = await opened.client(deduplicate=True)
    await first.produce(topic=opened.topic, **named)
    await first.store(b"a", b"b", b"c")
    second = await opened.client(deduplicate=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishers, "WINDOW_S", -3600.0)  # what was stored now is outside of it
        assert (await second.produce(topic=opened.topic, **named)).last_sequence_id == -1
    third = await opened.client(deduplicate=True)
    assert (await third.produce(topic=opened.topic, **named)).last_sequence_id == 2


@shows("Boundaries of batches")
async def boundaries(opened: Gateways) -> None:
    client = await opened.client()
    await client.produce(topic=opened.topic)
    client.send(batch_frame([b"a", b"b", b"c"]))
    await client.of(BaseCommand.SEND_RECEIPT)
    await client.subscribe(topic=opened.topic, permits=10)
    frames = [await frame_of(client) for _ in range(3)]
    assert [payload_of(frame) for frame in frames] == [b"a", b"b", b"c"]
    assert not any(metadata_of(frame).HasField("num_messages_in_batch") for frame in frames)
    client.send(client_commands.redeliver(1, [], None))
    first, second, _ = [ids.entry_id((await frame_of(client)).command.message.message_id) for _ in range(3)]
    client.ack(second)
    client.send(client_commands.redeliver(1, [], None))
    again = [ids.entry_id((await frame_of(client)).command.message.message_id) for _ in range(2)]
    assert again == [first, (first[0], first[1] + 2)], "one message of the batch was acknowledged"


@shows("Message ids")
async def message_ids(opened: Gateways) -> None:
    client = await opened.client()
    await client.produce(topic=opened.topic)
    await client.store(b"before")
    client.send(batch_frame([b"a", b"b", b"c"], 1))
    receipt = (await client.of(BaseCommand.SEND_RECEIPT)).message_id
    await client.subscribe(topic=opened.topic, permits=10)
    entries = [(await client.message())[0] for _ in range(4)]
    assert entries[1] == ids.entry_id(receipt)
    assert entries[1:] == [(entries[1][0], entries[1][1] + index) for index in range(3)]
    third = MessageIdData(ledgerId=receipt.ledgerId, entryId=receipt.entryId, batch_index=2)  # as its producer names it
    request = client.number()
    seek_to = CommandSeek(consumer_id=1, request_id=request, message_id=third)
    client.send(encode_command(BaseCommand(type=BaseCommand.SEEK, seek=seek_to)))
    await client.answer(request)
    await client.subscribe(topic=opened.topic, permits=10)
    assert await client.messages(3) == [b"a", b"b", b"c"]


@shows("Messages above the backing's limit")
async def large_messages(opened: Gateways) -> None:
    served = await opened.open()
    client = await served.connect(handshake=False)
    limit = opened.cluster.capabilities.max_message_bytes
    assert limit is not None
    told = (await client.handshake()).max_message_size
    assert told == limit - LIMIT_PADDING
    await client.produce(topic=opened.topic)
    chunk = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 2 * told}
    client.send(*(entry_frame(bytes(told), index, chunk_id=index, **chunk) for index in range(2)))
    for _ in range(2):
        await client.of(BaseCommand.SEND_RECEIPT)
    await client.subscribe(topic=opened.topic, permits=10)
    frames = [await frame_of(client) for _ in range(2)]
    assert [(metadata_of(frame).chunk_id, len(payload_of(frame))) for frame in frames] == [(0, told), (1, told)]


# --- how gateways share a group ---------------------------------------------------------------------------------------------


async def one_holder(opened: Gateways, kind: "CommandSubscribe.SubType.ValueType") -> tuple[Serving, Serving]:
    """Start two gateways that share a group; return the one that has the partition when it does not move any more, and the other.

    Consumers of it may be sent away meanwhile: those of the caller come later.
    """
    served = [await opened.open() for _ in range(2)]
    scouts = [await one.connect() for one in served]
    for scout in scouts:
        await scout.subscribe(topic=opened.topic, subType=kind)
    before, steady = [False, False], 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while steady < STEADY_POLLS:
            held = [any(each.feed.is_held for each in one.broker.subscriptions.values()) for one in served]
            steady = steady + 1 if held == before and sorted(held) == [False, True] else 0
            before = held
            await asyncio.sleep(POLL_S)
    for scout in scouts:
        await scout.close()
    await until(lambda: not any(one.broker.subscriptions for one in served))
    return (served[0], served[1]) if before[0] else (served[1], served[0])


@shows("Subscriptions: Exclusive")
async def exclusive(opened: Gateways) -> None:
    holder, other = await one_holder(opened, CommandSubscribe.Exclusive)
    here, there = [await one.connect() for one in (holder, other)]
    for client in (here, there):
        assert not hasattr(await client.subscribe(topic=opened.topic, permits=1), "error"), "each gateway admits one"
    for one in (holder, other):
        refused = await (await one.connect()).subscribe(topic=opened.topic)
        assert refused.error == codes.CONSUMER_BUSY
    await there.produce(topic=opened.topic)
    await there.store(b"x")
    assert (await here.message())[1] == b"x"
    await there.ping()
    assert counts_of([there]) == [0]


def counts_of(clients: list[RawClient]) -> list[int]:
    """Return how many messages each client has got."""
    return [sum(frame.type == BaseCommand.MESSAGE for frame in client.frames) for client in clients]


async def pair_at(served: Serving, topic: str, kind: "CommandSubscribe.SubType.ValueType") -> list[RawClient]:
    """Return two clients of a gateway that have subscribed."""
    pair = [await served.connect() for _ in range(2)]
    for number, client in enumerate(pair):
        answer = await client.subscribe(topic=topic, subType=kind, permits=1000, consumer_name=f"c{number}")
        assert not hasattr(answer, "error")
    return pair


async def send_forty(served: Serving, topic: str) -> None:
    producer = await served.connect()
    await producer.produce(topic=topic)
    for number in range(40):
        await producer.store(b"%d" % number, partition_key=f"k{number}")


@shows("Subscriptions: Failover")
async def failover(opened: Gateways) -> None:
    holder, other = await one_holder(opened, CommandSubscribe.Failover)
    here, there = [await pair_at(one, opened.topic, CommandSubscribe.Failover) for one in (holder, other)]
    await send_forty(other, opened.topic)
    await until(lambda: sum(counts_of(here)) == 40)
    assert sorted(counts_of(here)) == [0, 40], "one consumer of the gateway that the backing has chosen"
    assert counts_of(there) == [0, 0]
    await opened.stop(holder)
    await until(lambda: sum(counts_of(there)) == 40)
    assert sorted(counts_of(there)) == [0, 40]


@shows("Subscriptions: Shared, Key_Shared, sticky ranges")
async def shared(opened: Gateways) -> None:
    for kind in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared):
        opened.topic_name += "k"
        holder, other = await one_holder(opened, kind)
        here, there = [await pair_at(one, opened.topic, kind) for one in (holder, other)]
        await send_forty(other, opened.topic)
        await until(lambda: sum(counts_of(here)) == 40)  # noqa: B023 - waited for here
        assert all(counts_of(here)), "consumers at one gateway share what it holds"
        for client in there:
            await client.ping()
        assert counts_of(there) == [0, 0]


@shows("Acknowledgements behind the oldest unacknowledged message")
async def acknowledged_behind(opened: Gateways) -> None:
    first = await opened.open()
    client = await first.connect()
    await client.produce(topic=opened.topic)
    await client.store(*[b"%d" % number for number in range(5)])
    await client.subscribe(topic=opened.topic, permits=10, subType=CommandSubscribe.Shared)
    entries = [(await client.message())[0] for _ in range(5)]
    client.ack(entries[0], *entries[2:4], request=99)
    await client.answer(99)
    again = await first.connect()
    await client.close()
    await again.subscribe(topic=opened.topic, permits=10, subType=CommandSubscribe.Shared)
    assert await again.messages(2) == [b"1", b"4"], "the gateway knows it"
    await opened.stop(first)
    other = await opened.client()
    await other.subscribe(topic=opened.topic, permits=10, subType=CommandSubscribe.Shared)
    assert await other.messages(4) == [b"1", b"2", b"3", b"4"]


@shows("Seek by id and by time")
async def seek(opened: Gateways) -> None:
    holder, other = await one_holder(opened, CommandSubscribe.Failover)
    for served, expected in ((other, codes.SERVICE_NOT_READY), (holder, None)):
        for target in ({"publish_time": 1}, {"to": ids.EARLIEST}):
            client = await served.connect()
            await client.subscribe(topic=opened.topic, subType=CommandSubscribe.Failover)
            request = client.number()
            client.send(client_commands.seek(request, 1, **target))  # type: ignore[arg-type]
            assert getattr(await client.answer(request), "error", None) == expected


# --- delays -----------------------------------------------------------------------------------------------------------------


async def delayed_last(opened: Gateways, kind: "CommandSubscribe.SubType.ValueType") -> None:
    """Check that the backing stores a delayed message only when it is due, so that no consumer can get it earlier."""
    client = await opened.client()
    await client.produce(topic=opened.topic)
    await client.subscribe(topic=opened.topic, permits=10, subType=kind)
    await client.store(b"delayed", deliver_at_time=round((time.time() + DELAY_S) * 1000))
    await client.store(b"at once")
    (first, payload), (second, delayed) = [await client.message() for _ in range(2)]
    assert (payload, delayed) == (b"at once", b"delayed")
    assert first < second, "it was stored when it was due"


@shows("Delayed delivery to Shared and Key_Shared, within a minute")
@shows("Delayed delivery to Shared and Key_Shared, later")
async def delayed_shared(opened: Gateways) -> None:
    await delayed_last(opened, CommandSubscribe.Shared)


@shows("Delayed messages on Exclusive, Failover and readers: delivered at once")
async def delayed_exclusive(opened: Gateways) -> None:
    await delayed_last(opened, CommandSubscribe.Exclusive)


# --- schemas ----------------------------------------------------------------------------------------------------------------


@shows("Schemas")
async def schemas(opened: Gateways) -> None:
    first, second = [
        json_record(record(*(field(name, "string", default="") for name in names))).to_wire() for names in ("a", "ab")
    ]
    here, there = await opened.client(), await opened.client()
    versions = [
        (await here.produce(number, opened.topic, schema=schema)).schema_version for number, schema in enumerate((first, second))
    ]
    assert len(set(versions)) == 2
    assert not {number.to_bytes(8) for number in range(3)} & set(versions)
    assert (await there.produce(1, opened.topic, schema=second)).schema_version == versions[1], "the same at every gateway"
