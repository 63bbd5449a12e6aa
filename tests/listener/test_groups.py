"""What both kinds of groups are made of: feeds and sources of partitions, their positions, and the names of groups."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.names import ANY_NAME, NameRule
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.store import GroupKey
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import GroupNames
from mqbridge.listener.limits import READ_BYTES
from mqbridge.listener.parked import DueNumbering
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Partition
from tests.listener.faulty import Listened, taken_numbers
from tests.patience import PATIENCE_S

TOPIC = ListenedTopic("client-t", "t", {0: "0"}, is_partitioned=True)
LETTERS = NameRule(re.compile("[a-z]"), re.compile("[a-z0-9_]"), 20, "letters, digits and underscores")


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Listened]:
    made = Listened("partitions", tmp_path / "state.db")
    yield made
    made.requests.release()
    await made.close()


# --- partitions ---------------------------------------------------------------------------------------------------------------


async def test_keys_have_the_names_of_the_cluster(bench: Listened) -> None:
    topic = ListenedTopic("client-t", "t", {0: "broker:0"}, is_partitioned=True)
    assert bench.partitions.key(topic, 0, "g") == GroupKey("app", "partitions", "t", "broker:0", "g")


async def test_feeds_have_no_source_yet(bench: Listened) -> None:
    async def find_begin() -> int | None:
        return 2

    topic = await bench.topic()
    bench.send(*range(4))
    feed = bench.partitions.make_feed(topic, 0, "g", bench.store)
    queue_feed = bench.partitions.make_queue_feed(topic, 0, "g", find_begin)
    assert (type(feed), type(queue_feed)) == (Feed, QueueFeed)
    assert feed.key == queue_feed.key == bench.partitions.key(topic, 0, "g")
    assert (feed.is_held, queue_feed.is_held) == (False, False)
    queue_feed.attach(bench.partitions.source(topic, 0, (0,)))
    async with asyncio.timeout(PATIENCE_S):
        found = await queue_feed.read(2, 1, 1 << 20, may_skip=False)
        assert list(found.numbers) == [2], "it asks where the group begins"
        assert queue_feed.committed == 2
        assert bench.unacknowledged.used > 0, "it counts what it holds with all others"
        await queue_feed.detach()


async def test_feeds_of_what_is_due_count_otherwise(bench: Listened) -> None:
    due = ListenedTopic("t", "t", {0: "0"}, is_partitioned=False, is_due=True)
    assert isinstance(bench.partitions.make_feed(due, 0, "g", None)._numbering, DueNumbering)
    assert bench.partitions.make_feed(TOPIC, 0, "g", None)._numbering is bench.cluster.numbering


async def test_sources_read_a_partition_by_position(bench: Listened, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await bench.topic(2)
    bench.send(*range(5), partition=1)
    source = bench.partitions.source(topic, 1, (3,))
    assert source.partition == Partition("partitions", "t", "1", 1)
    sizes, reader = list[int](), bench.cluster.reader

    async def note(*arguments: object, max_bytes: int = 0) -> object:
        sizes.append(max_bytes)
        return await reader(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.cluster, "reader", note)
    batch = await source.receive()
    assert (batch.first, batch.next, sizes) == ((3,), (5,), [READ_BYTES])
    await source.release()
    with pytest.raises(RequestRefused):
        bench.partitions.source(topic, 2, (0,))


async def test_a_reader_has_a_feed_of_its_own(bench: Listened) -> None:
    topic = await bench.topic()
    bench.send(*range(5))
    for start, expected in ((Start.EARLIEST, [0, 1]), ((3,), [3, 4])):
        feed = await bench.partitions.open_reader(topic, 0, start, "reader")
        assert await taken_numbers(feed, 2) == expected
        await feed.detach()
    assert bench.store is not None
    assert bench.store.groups("app", "partitions", "t") == [], "nobody keeps its position"


async def test_groups_begin_at_an_end_or_at_a_time(bench: Listened) -> None:
    topic = await bench.topic(2)
    bench.send(*range(5), partition=1)
    bench.cluster.broker.delete_below("t", 1, 2)
    bench.cluster.times = {"1": (4,)}
    found = [await bench.partitions.position_of(topic, 1, start) for start in (Start.EARLIEST, Start.LATEST, 12345)]
    assert found == [(2,), (5,), (4,)]
    bounds = await bench.partitions.bounds(topic, 1)
    assert (bounds.first, bounds.next) == ((2,), (5,))


async def test_the_position_of_a_time_may_be_unknown(bench: Listened) -> None:
    topic = await bench.topic(2)
    bench.cluster.times = {"1": (4,)}
    with pytest.raises(ClusterError, match="is not known in partition 0") as failed:
        await bench.partitions.position_at(topic, 0, 12345)
    assert failed.value.failure is Failure.RETRY
    bench.cluster.has_operations = False
    with pytest.raises(RequestRefused) as refused:
        await bench.partitions.position_at(topic, 1, 12345)
    assert refused.value.reason is RefusalReason.NOT_ALLOWED


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((2,), Acknowledged((4,), (3,), ((6, 8), (10, 10)), {12: 1})),
        ((7,), Acknowledged((7,), (3,), ((7, 8), (10, 10)), {12: 1})),
        ((11,), Acknowledged((11,), (3,), (), {12: 1})),
        ((13,), Acknowledged((13,), (3,))),
    ],
)
async def test_what_is_acknowledged_behind_an_advance_stays_so(
    bench: Listened, position: tuple[int], expected: Acknowledged
) -> None:
    known = Acknowledged((4,), (3,), ((6, 8), (10, 10)), {12: 1})
    assert bench.partitions.advanced(known, position) == expected


async def test_a_topic_is_forgotten_with_all_groups(bench: Listened) -> None:
    assert bench.store is not None
    topics = [await bench.topic(1, name) for name in ("t", "u")]
    for topic in topics:
        bench.store.record(bench.partitions.key(topic, 0, "g"), lambda: Acknowledged((1,), (1,)))
    bench.partitions.forget(topics[0], bench.store)
    found = [bench.store.groups("app", "partitions", topic.backing) for topic in topics]
    assert found == [[], ["g"]]


# --- names --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["{group}", "a-{group}", "{group}-b", "{topic}/{group}", "x{group}x"])
@pytest.mark.parametrize("rule", [ANY_NAME, LETTERS])
@pytest.mark.parametrize("group", ["g", "x", "a-b", "x_2d_", "%"])
def test_names_of_groups_come_back(template: str, rule: NameRule, group: str) -> None:
    names = GroupNames(template, rule)
    if rule is LETTERS and len(template) + len(group) > 12:
        return  # they are too long
    backing = names.backing_name(TOPIC, group)
    assert rule.problem(backing) is None
    assert names.client_name(TOPIC, backing) == group


def test_templates_are_filled() -> None:
    assert GroupNames("{topic}/{group}", ANY_NAME).backing_name(TOPIC, "g") == "t/g"
    assert GroupNames("a-{group}", LETTERS).backing_name(TOPIC, "g") == "ax_2d_g"


def test_a_name_that_cannot_exist_is_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        GroupNames("{group}", LETTERS).backing_name(TOPIC, "g" * 21)
    assert refused.value.reason is RefusalReason.INVALID_NAME


@pytest.mark.parametrize("backing", ["", "a-", "a-b", "ab", "a--b", "ag-b", "a-g-", "u/a-g-b"])
def test_other_names_are_of_no_client(backing: str) -> None:
    found = GroupNames("a-{group}-b", ANY_NAME).client_name(TOPIC, backing)
    assert found is None


def test_a_name_that_is_no_escape_is_of_no_client() -> None:
    assert GroupNames("{group}", LETTERS).client_name(TOPIC, "a-b") is None
