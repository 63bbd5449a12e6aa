"""Messages that own groups need are kept in a cluster that keeps messages only for groups of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.operations import Operations
from mqbridge.errors import ClusterError, Failure
from mqbridge.groups.store import GroupStore
from mqbridge.listener import retainer as retainer_module
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.groups import Partitions
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.retainer import Retainer
from mqbridge.listener.topics import ListenedTopic, ListenedTopics, TopicTemplate
from mqbridge.message import Position
from mqbridge.pulsar.adapter.registration import ADAPTER
from tests.kit.process import ClusterError as ServerError
from tests.kit.pulsar import Pulsar
from tests.listener.faulty import FaultyCluster, FaultyOperations, Listened, until
from tests.patience import PATIENCE_S, SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import send_all

GROUP = "mqbridge-app"


class KeepingOperations(FaultyOperations):
    """Operations of a cluster that keeps messages only for its groups."""

    async def create_group(self, topic: str, group: str) -> None:
        await self.requests.pass_("create_group")
        missing = (await self._cluster.bounds(topic)).keys() - (await self._cluster.committed(topic, group)).keys()
        await super().move(topic, group, dict.fromkeys(missing, (0,)))
        self.requests.calls["move"] -= 1

    def check_create_group(self) -> None:
        """It does not."""


class KeepingCluster(FaultyCluster):
    @property
    def operations(self) -> Operations | None:  # type: ignore[override]
        return KeepingOperations(self) if self.has_operations else None


class RetainingBench(Listened):
    def __init__(self, path: Path) -> None:
        super().__init__("retainer", path)
        self.cluster.__class__ = KeepingCluster
        self.start()

    def start(self) -> None:
        assert self.store is not None
        self.groups = OwnGroups(self.partitions, self.store, "app", self.cluster.name, self.cluster)
        assert self.groups._retainer is not None
        self.retainer = self.groups._retainer

    async def kept(self, topic: str = "t") -> dict[str, Position]:
        return dict(await self.cluster.committed(topic, GROUP))

    async def until_kept(self, expected: Mapping[str, Position], topic: str = "t") -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.kept(topic) != expected:
                await asyncio.sleep(0.001)

    async def looks(self, count: int = 3) -> None:
        """Wait until it has looked at the groups a few times."""
        self.cluster.requests.calls["look"] = 0
        await until(lambda: self.cluster.requests.calls["look"] >= count)


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RetainingBench]:
    monkeypatch.setattr(retainer_module, "MOVE_S", 0.005)
    follow = Retainer._follow

    async def counted(self: Retainer, topic: ListenedTopic) -> None:
        try:
            await follow(self, topic)
        finally:
            cast("Any", self._cluster).requests.calls["look"] += 1

    monkeypatch.setattr(Retainer, "_follow", counted)
    made = RetainingBench(tmp_path / "state.db")
    yield made
    made.requests.release()
    await made.groups.close()
    await made.close()


async def test_the_group_is_created_with_the_first_own_group_and_before_its_position_is_known(bench: RetainingBench) -> None:
    topic = await bench.topic(2)
    bench.send(1, 2, 3)
    gate = bench.requests.hang("create_group")
    creating = asyncio.ensure_future(bench.groups.create(topic, "g", Start.LATEST))
    await bench.requests.until_waiting("create_group")
    assert not await bench.groups.exists(topic, "g")
    gate.set()
    await creating
    await bench.until_kept({"0": (3,), "1": (0,)})
    assert bench.requests.calls["create_group"] == 1
    await bench.groups.create(topic, "h", Start.EARLIEST)
    await bench.until_kept({"0": (0,), "1": (0,)})
    assert bench.requests.calls["create_group"] == 1


async def test_it_follows_the_lowest_position_of_the_groups(bench: RetainingBench) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    for group in "gh":
        await bench.groups.create(topic, group, Start.EARLIEST)
    bench.groups.commit(topic, 0, "g", (7,), backwards=False)
    bench.groups.commit(topic, 0, "h", (4,), backwards=False)
    await bench.until_kept({"0": (4,)})
    bench.groups.commit(topic, 0, "h", (9,), backwards=False)
    await bench.until_kept({"0": (7,)})
    await bench.groups.move(topic, "h", {0: (2,)})
    await bench.until_kept({"0": (2,)})
    await bench.groups.delete(topic, "h")
    await bench.until_kept({"0": (7,)})


async def test_it_is_moved_no_further_than_what_the_state_file_has(
    bench: RetainingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await bench.topic()
    bench.send(*range(10))
    await bench.groups.create(topic, "g", Start.EARLIEST)
    await bench.until_kept({"0": (0,)})
    gate, written = asyncio.Event(), GroupStore.written

    async def wait(self: GroupStore, key: Any) -> None:
        await gate.wait()
        await written(self, key)

    monkeypatch.setattr(GroupStore, "written", wait)
    bench.groups.commit(topic, 0, "g", (5,), backwards=False)
    for _ in range(50):
        await asyncio.sleep(0)
    assert await bench.kept() == {"0": (0,)}
    gate.set()
    await bench.until_kept({"0": (5,)})


async def test_it_is_not_moved_without_need(bench: RetainingBench) -> None:
    topic = await bench.topic()
    await bench.groups.create(topic, "g", Start.EARLIEST)
    await bench.looks()
    moves = bench.requests.calls["move"]
    await bench.looks()
    assert bench.requests.calls["move"] == moves == 1


async def test_it_stays_where_a_group_has_no_position_yet(bench: RetainingBench) -> None:
    await bench.groups.create(await bench.topic(1), "g", Start.EARLIEST)
    bench.send(1, 2)
    grown = await bench.topic(2)
    bench.send(1, 2, 3, partition=1)
    await bench.groups.create(grown, "h", Start.LATEST)
    await bench.until_kept({"0": (0,), "1": (0,)})
    await bench.looks()
    assert await bench.kept() == {"0": (0,), "1": (0,)}, "g begins at the first message of the new partition"


async def test_without_own_groups_it_stays_where_it_is(bench: RetainingBench) -> None:
    topic = await bench.topic()
    bench.send(1, 2)
    await bench.groups.create(topic, "g", Start.EARLIEST)
    await bench.until_kept({"0": (0,)})
    await bench.groups.delete(topic, "g")
    await bench.looks()
    assert await bench.kept() == {"0": (0,)}


async def test_it_is_created_again_when_groups_that_exist_are_used(bench: RetainingBench) -> None:
    topic = await bench.topic()
    bench.send(1, 2)
    await bench.groups.create(topic, "g", Start.LATEST)
    await bench.groups.close()
    await KeepingOperations(bench.cluster).delete_group("t", GROUP)
    assert await bench.kept() == {}
    bench.start()
    feed = await bench.groups.open(topic, 0, "g", Start.EARLIEST, next(iter(bench.cluster.capabilities.sharing)))
    await bench.until_kept({"0": (2,)})
    bench.groups.release(feed)


async def test_it_follows_groups_that_are_read_at_a_number_after_a_restart(bench: RetainingBench) -> None:
    topic = await bench.topic(1)
    bench.send(1, 2, 3)
    await bench.groups.begin(topic, 0, "g", Start.EARLIEST)
    await bench.until_kept({"0": (0,)})
    await bench.groups.close()
    bench.start()
    assert await bench.groups.begin(topic, 0, "g", Start.EARLIEST) == (0,)
    bench.groups.commit(topic, 0, "g", (2,), backwards=False)
    await bench.until_kept({"0": (2,)})


async def test_a_group_is_not_created_while_its_messages_would_not_be_kept(bench: RetainingBench) -> None:
    topic = await bench.topic()
    bench.requests.errors["create_group"] = ClusterError("not now")
    with pytest.raises(ClusterError, match="not now"):
        await bench.groups.create(topic, "g", Start.EARLIEST)
    assert not await bench.groups.exists(topic, "g")
    bench.requests.release()
    await bench.groups.create(topic, "g", Start.EARLIEST)
    await bench.until_kept({"0": (0,)})


async def test_a_cluster_that_can_never_keep_messages_is_used_without(
    bench: RetainingBench, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await bench.topic()
    bench.requests.errors["create_group"] = ClusterError("needs admin_url", Failure.FATAL)
    await bench.groups.create(topic, "g", Start.EARLIEST)
    assert await bench.groups.exists(topic, "g")
    assert "are not kept" in caplog.text
    await bench.looks()
    assert caplog.text.count("may not be kept") == 1, "it says so once"


async def test_a_move_that_fails_is_repeated(bench: RetainingBench, caplog: pytest.LogCaptureFixture) -> None:
    topic = await bench.topic()
    bench.send(1, 2)
    await bench.groups.create(topic, "g", Start.EARLIEST)
    await bench.until_kept({"0": (0,)})
    await bench.looks()
    bench.requests.errors["move"] = ClusterError("not now")
    bench.groups.commit(topic, 0, "g", (2,), backwards=False)
    await bench.looks()
    bench.requests.release()
    await bench.until_kept({"0": (2,)})
    assert "not now" in caplog.text


async def test_a_topic_that_is_forgotten_is_not_kept(bench: RetainingBench) -> None:
    topic = await bench.topic()
    await bench.groups.create(topic, "g", Start.EARLIEST)
    await bench.groups.forget(topic)
    assert not bench.retainer._topics
    await bench.groups.create(topic, "g", Start.EARLIEST)
    assert bench.requests.calls["create_group"] == 2


async def test_a_cluster_that_keeps_messages_by_time_is_left_alone(tmp_path: Path) -> None:
    listened = Listened("kept-by-time", tmp_path / "state.db")
    assert listened.store is not None
    groups = OwnGroups(listened.partitions, listened.store, "app", listened.cluster.name, listened.cluster)
    topic = await listened.topic()
    await groups.create(topic, "g", Start.EARLIEST)
    assert groups._retainer is not None
    assert not groups._retainer.is_active
    assert await listened.cluster.committed("t", GROUP) == {}
    await groups.close()
    await listened.close()


# --- a real cluster -----------------------------------------------------------------------------------------------------------


async def trim(server: Pulsar, partition: str) -> None:
    """Close the open ledger, and let the broker delete those that it does not need."""
    path = partition.replace("://", "/")
    server.admin("PUT", f"{path}/unload")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while True:
            try:
                server.admin("POST", f"{path}/trim")
            except ServerError:  # the topic is being loaded
                await asyncio.sleep(0.1)
            else:
                return


async def until_trimmed(server: Pulsar, partition: str) -> None:
    """Let the broker delete what it does not need until it has no entries any more."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while True:
            await trim(server, partition)
            stats = server.admin("GET", f"{partition.replace('://', '/')}/internalStats")
            if not sum(int(ledger["entries"]) for ledger in stats["ledgers"]):
                return
            await asyncio.sleep(0.1)


@pytest.mark.cluster
@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_kept", [True, False])
async def test_pulsar_keeps_what_own_groups_need(
    pulsar: Pulsar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.setattr(retainer_module, "MOVE_S", 0.05)
    full = pulsar.take_topic(1)
    partition = f"{full}-partition-0"
    config = cast("Any", ADAPTER.cluster_model)(service_url=pulsar.service_url, admin_url=pulsar.admin_url)
    cluster = ADAPTER.make_cluster("c", config)
    await cluster.connect()
    store = GroupStore(tmp_path / "state.db")
    partitions = Partitions(cluster, "app", "tubemq.pack", FeedLimits(UnacknowledgedBytes(1 << 20), 1000))
    groups = OwnGroups(partitions, store, "app", "c", cluster if is_kept else None)
    topics = ListenedTopics(cluster, TopicTemplate("{topic}"), create_partitions=None, is_reserved=lambda _: False)
    topic = await topics.find(full.rpartition("/")[2], fresh=True)
    assert topic is not None
    await groups.create(topic, "g", Start.EARLIEST)
    client = client_of(pulsar.service_url)
    producer = client.producer(partition)
    sent = await send_all(producer, 0, 10)
    await producer.close()
    await trim(pulsar, partition)
    if not is_kept:
        await until_trimmed(pulsar, partition)
    else:
        bounds = (await cluster.bounds(topic.backing))["0"]
        assert bounds.first == (sent[0].ledger, sent[0].entry, 0)
        groups.commit(topic, 0, "g", bounds.next, backwards=False)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while (await cluster.committed(topic.backing, GROUP))["0"] < bounds.next:
                await asyncio.sleep(0.05)
        await until_trimmed(pulsar, partition)
        assert GROUP in await cluster.operations.groups(topic.backing)  # type: ignore[union-attr]
    await client.close()
    await groups.close()
    await store.close()
    await cluster.close()
