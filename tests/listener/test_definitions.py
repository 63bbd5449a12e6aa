"""Definitions are durable, the same at every gateway, and published again before the retention takes them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, LocalProtocolError, RefusalReason, RequestRefused
from mqbridge.listener import definitions
from mqbridge.listener.definitions import (
    DEFINITIONS_TOPIC,
    Definition,
    Definitions,
    DefinitionTable,
    Deletion,
    InvalidRecord,
    decode_record,
    encode_record,
)
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.kit.conversation import until
from tests.patience import PATIENCE_S

TOPIC = "persistent://public/default/orders"
V1, V2 = b"version1", b"version2"
HOUR_S = 3600.0
CLUSTER = "definitions"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest_asyncio.fixture(params=["memory", "log"])
async def make_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Cluster]]:
    """Return a function that makes a connection of another gateway to the same cluster."""
    made: list[Cluster] = []

    def make() -> Cluster:
        if request.param == "memory":
            cluster: Cluster = MemoryCluster(CLUSTER, MemoryConfig())
        else:
            cluster = LogCluster(CLUSTER, LogSettings(path=tmp_path / "log.db", poll="5ms"))
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        await cluster.close()
    if request.param == "memory":
        delete_broker(CLUSTER)


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[MemoryCluster]:
    yield MemoryCluster(CLUSTER, MemoryConfig())
    delete_broker(CLUSTER)


@asynccontextmanager
async def started(cluster: Cluster, clock: Callable[[], float] | None = None) -> AsyncIterator[Definitions]:
    await cluster.connect()
    made = Definitions(cluster) if clock is None else Definitions(cluster, clock=clock)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def records(topic: str = DEFINITIONS_TOPIC) -> list[tuple[Definition | Deletion, int]]:
    """Return the records that a memory cluster holds."""
    return [decode_record(message.payload or b"") for message in get_broker(CLUSTER).topics[topic][0].messages]


async def publish(cluster: Cluster, *payloads: bytes) -> None:
    outbound = await cluster.outbound(OutboundSpec(DEFINITIONS_TOPIC))
    await outbound.send(0, Share(Batch.of([Message(payload) for payload in payloads])))
    await outbound.close()


def versions(known: Definitions, topic: str = TOPIC) -> list[bytes]:
    return [each.version for each in known.versions(topic)]


@pytest.mark.parametrize(
    "said",
    [Definition(TOPIC, V1, 5, 4, b'{"\n"}\xff', (("a", "é"), ("a", "2"))), Deletion(TOPIC, b"", 7), Deletion(TOPIC, V1, 7)],
)
def test_records_are_read_as_they_were_written(said: Definition | Deletion) -> None:
    assert decode_record(encode_record(said, 9)) == (said, 9)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"{}\n",
        b"[]\n",
        b"\xff\n",
        b'{"topic": "t", "registered_ms": "x", "published_ms": 1}\n',
        b'{"topic": "t", "registered_ms": 1, "published_ms": 1, "type": 4, "properties": []}\n',
        b'{"topic": "t", "registered_ms": 1, "published_ms": 1, "type": 4, "version": "01", "properties": [1]}\n',
        b'{"topic": "t", "registered_ms": 1, "published_ms": 1, "type": 4, "version": 5, "properties": []}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_record_is_told_from_one(payload: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_record(payload)


async def test_nothing_is_created_before_the_first_definition(make_cluster: Callable[[], Cluster]) -> None:
    cluster = make_cluster()
    async with started(cluster) as known:
        await known.catch_up()
        assert versions(known) == []
        assert await cluster.topics() == []
        await known.add(TOPIC, V1, 4, b"one")
        topic = await cluster.describe(DEFINITIONS_TOPIC)
        assert topic is not None
        assert len(topic.partitions) == 1


async def test_definitions_survive_a_restart(make_cluster: Callable[[], Cluster]) -> None:
    cluster = make_cluster()
    async with started(cluster) as known:
        await known.add(TOPIC, V1, 4, b"one", (("a", "b"),))
        await known.add(TOPIC, V2, 1, b"")
        await known.add("persistent://public/default/other", V1, 1, b"")
        before = list(known.versions(TOPIC))
    async with started(make_cluster()) as known:
        assert list(known.versions(TOPIC)) == before
        assert [(each.version, each.type, each.data, each.properties) for each in before] == [
            (V1, 4, b"one", (("a", "b"),)),
            (V2, 1, b"", ()),
        ]
        assert known.find(TOPIC, V2) == before[1]


async def test_gateways_see_each_others_definitions(make_cluster: Callable[[], Cluster]) -> None:
    async with started(make_cluster()) as one, started(make_cluster()) as other:
        await one.add(TOPIC, V1, 4, b"one")
        await other.catch_up()
        assert versions(other) == [V1]
        await other.add(TOPIC, V2, 4, b"two")
        await until(lambda: versions(one) == [V1, V2])  # without being asked
        await one.delete(TOPIC)
        await other.catch_up()
        assert versions(other) == versions(one) == []


async def test_a_definition_that_replaces_another_is_known_when_it_is_added(make_cluster: Callable[[], Cluster]) -> None:
    """As the moves of a group are, one after the other."""
    async with started(make_cluster()) as known:
        for number in (b"1", b"2", b"3"):
            added = await known.add(TOPIC, V1, 0, number)
            assert known.find(TOPIC, V1) == added


async def test_a_deleted_definition_stays_deleted_and_may_come_again(make_cluster: Callable[[], Cluster]) -> None:
    clock = Clock()
    async with started(make_cluster(), clock) as known:
        old = await known.add(TOPIC, V1, 4, b"one")
        await known.delete(TOPIC)
        await known.delete(TOPIC)
        cluster = make_cluster()
        await cluster.connect()
        await publish(cluster, encode_record(old, 1), b"no record")  # a gateway that lagged has published it again
        await known.catch_up()
        assert versions(known) == []
        new = await known.add(TOPIC, V1, 4, b"one")
        assert new.registered_ms > old.registered_ms
        assert versions(known) == [V1]
        await known.add(TOPIC, V2, 4, b"two")
        await known.delete(TOPIC, V1)
        assert versions(known) == [V2]
    async with started(make_cluster(), clock) as known:
        assert versions(known) == [V2]


async def test_versions_are_in_the_order_in_which_they_appeared_even_if_a_clock_is_wrong(memory: MemoryCluster) -> None:
    ahead, behind = Clock(), Clock()
    ahead.now_s += HOUR_S
    async with started(memory, ahead) as one, started(memory, behind) as other:
        await one.add(TOPIC, V2, 4, b"one")
        await other.catch_up()
        await other.add(TOPIC, V1, 4, b"two")
        assert versions(other) == [V2, V1]


async def test_old_records_are_published_again_by_one_gateway(memory: MemoryCluster) -> None:
    clock = Clock()
    async with started(memory, clock) as one, started(memory, clock) as other:
        await one.add(TOPIC, V1, 4, b"one")
        await one.add(TOPIC, V2, 4, b"two")
        await one.delete(TOPIC, V2)
        assert await one.republish() == 0
        clock.now_s += definitions.REPUBLISH_AFTER_S * definitions.REPUBLISH_SPREAD + 1
        assert await one.republish() == 2, "the definition, and the deletion"
        assert await other.republish() == 0, "it has seen the new records"
        stored = records()
        assert len(stored) == 5
        assert {(said, published_ms > 1_000_000_000) for said, published_ms in stored[3:]} == {
            (stored[0][0], True),
            (stored[2][0], True),
        }
        memory.broker.delete_below(DEFINITIONS_TOPIC, 0, 3)
    async with started(memory, clock) as again:
        assert versions(again) == [V1]


async def test_what_the_retention_has_taken_is_published_at_once(memory: MemoryCluster) -> None:
    async with started(memory) as known:
        for number in range(3):
            await known.add(TOPIC, bytes([number]), 4, b"")
        memory.broker.delete_below(DEFINITIONS_TOPIC, 0, 2)
        assert await known.republish() == 2
    async with started(memory) as again:
        assert sorted(versions(again)) == [b"\0", b"\1", b"\2"]
        assert versions(again) == [b"\0", b"\1", b"\2"]


async def test_a_gap_while_reading_is_passed(memory: MemoryCluster) -> None:
    async with started(memory) as one:
        await one.add(TOPIC, V1, 4, b"")
        await one.add(TOPIC, V2, 4, b"")
        memory.broker.delete_below(DEFINITIONS_TOPIC, 0, 1)
        async with started(memory) as late:
            assert versions(late) == [V2]


async def test_a_deleted_topic_is_made_anew_from_memory(make_cluster: Callable[[], Cluster]) -> None:
    cluster = make_cluster()
    async with started(cluster) as known:
        await known.add(TOPIC, V1, 4, b"one")
        await known.add(TOPIC, V2, 4, b"two")
        await cluster.delete(DEFINITIONS_TOPIC)
        await until_republished(known, 2)
        assert versions(known) == [V1, V2]
    async with started(make_cluster()) as again:
        assert versions(again) == [V1, V2]


async def until_republished(known: Definitions, count: int) -> None:
    published = 0
    async with asyncio.timeout(PATIENCE_S):
        while published < count:
            with suppress(ClusterError, RequestRefused, TimeoutError):
                published += await known.republish()
            await asyncio.sleep(0.01)


async def test_old_deletions_are_forgotten(memory: MemoryCluster) -> None:
    clock = Clock()
    async with started(memory, clock) as known:
        await known.add(TOPIC, V1, 4, b"one")
        await known.delete(TOPIC)
        clock.now_s += definitions.FORGET_DELETIONS_S + 1
        assert await known.republish() == 0
        assert known.versions(TOPIC) == []


async def test_a_client_is_told_to_try_again_if_the_cluster_does_not_answer(
    memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(memory) as known:
        await known.add(TOPIC, V1, 4, b"one")
        memory.broker.faults.fatal = "no"
        with pytest.raises(RequestRefused) as caught:
            await known.add(TOPIC, V2, 4, b"two")
        assert caught.value.reason is RefusalReason.NOT_READY
        memory.broker.faults.fatal = None
        monkeypatch.setattr(definitions, "CATCH_UP_S", 0.01)
        memory.broker.faults.receive_delay_s = 0.0
        monkeypatch.setattr(known, "_apply", lambda _: None)  # the reader lags for ever
        await publish(memory, encode_record(Definition(TOPIC, V2, 5, 4, b""), 5))
        with pytest.raises(RequestRefused) as caught:
            await known.catch_up()
        assert caught.value.reason is RefusalReason.NOT_READY
        assert versions(known) == [V1], "what is known is still known"
    await memory.connect()


async def test_a_definition_is_added_again_after_a_failure(memory: MemoryCluster) -> None:
    async with started(memory) as known:
        memory.broker.faults.fatal = "no"
        with pytest.raises(RequestRefused):
            await known.add(TOPIC, V1, 4, b"one")
        memory.broker.faults.fatal = None
        await known.add(TOPIC, V1, 4, b"one")
        assert versions(known) == [V1]


async def test_definitions_beyond_the_limits_are_refused(memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MAX_DEFINITION_BYTES", 1000)
    monkeypatch.setattr(definitions, "MAX_VERSIONS", 2)
    monkeypatch.setattr(definitions, "MAX_TOPICS", 2)
    monkeypatch.setattr(definitions, "MAX_TOTAL_BYTES", 1500)
    async with started(memory) as known:
        await known.add("a", V1, 4, b"x" * 900)
        await known.add("a", V2, 4, b"")
        await known.add("b", V1, 4, b"")
        for topic, size in (("a", 0), ("b", 1000), ("b", 700), ("c", 0)):
            with pytest.raises(RequestRefused) as caught:
                await known.add(topic, b"another", 4, b"x" * size)
            assert caught.value.reason is RefusalReason.NOT_ALLOWED
        assert (await known.add("b", V2, 4, b"")).version == V2
        await known.delete("a")
        await known.add("c", V1, 4, b"x" * 900)
        await publish(memory, encode_record(Definition("d", V1, 5, 4, b""), 5))  # another gateway knows fewer
        await known.catch_up()
        assert known.versions("d") == []


def test_the_oldest_deletions_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MAX_DELETIONS", 2)
    table = DefinitionTable()
    for number in range(4):
        table.apply(Deletion(f"t{number}", b"", number), number, (number,))
    assert [each.topic for each in table.outdated(100, ())] == ["t2", "t3"]


def test_the_order_of_records_does_not_matter() -> None:
    """A record may be published again at any time: all orders give the same table."""
    said: list[Definition | Deletion] = [
        Definition("t", V1, 1, 4, b""),
        Deletion("t", b"", 2),
        Definition("t", V1, 3, 4, b""),
        Definition("t", V2, 4, 4, b""),
    ]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 1, 3], [1, 3, 0, 2], [0, 1, 2, 3, 0, 1, 2, 3]):
        table = DefinitionTable()
        for index in order:
            table.apply(said[index], 1, (index,))
        assert [(each.version, each.registered_ms) for each in table.versions("t")] == [(V1, 3), (V2, 4)], order
        assert table.total_bytes == 2


async def test_a_closed_reader_says_so(memory: MemoryCluster) -> None:
    async with started(memory) as known:
        pass
    with pytest.raises(LocalProtocolError):
        await known.catch_up()
