"""Topics of a listener: names both ways, one request for all who ask, and fresh descriptions."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from mqbridge.adapter.names import NameRule
from mqbridge.errors import ClusterError, ConfigError, RefusalReason, RequestRefused
from mqbridge.listener import limits as limits_module
from mqbridge.listener import topics as topics_module
from mqbridge.listener.topics import FixedNames, ListenedTopic, ListenedTopics, TopicTemplate
from mqbridge.net.tasks import cancel, spawn
from tests.listener.faulty import Listened
from tests.listener.feeds import settle


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Listened]:
    made = Listened("listened-topics")
    yield made
    made.requests.release()
    await made.close()


def test_a_template_maps_names_both_ways() -> None:
    template = TopicTemplate("persistent://public/default/{topic}")
    assert template.match("persistent://public/default/orders") == "orders"
    assert template.fill("orders") == "persistent://public/default/orders"
    assert template.match("persistent://public/other/orders") is None
    assert template.match("persistent://public/default/") is None
    assert TopicTemplate("a{topic}a").match("a") is None, "before and after do not overlap"
    for wrong in ("orders", "{topic}{topic}"):
        with pytest.raises(ConfigError, match="exactly once"):
            TopicTemplate(wrong)


async def test_topics_are_found_listed_created_and_deleted(bench: Listened) -> None:
    assert await bench.topics.find("t") is None
    created = await bench.topics.find_or_create("t")
    assert (created.name, created.backing, created.count, created.is_partitioned) == ("t", "t", 1, False)
    grown = await bench.topics.create("t", 3, is_partitioned=True)
    assert (grown.count, grown.is_partitioned) == (3, True)
    assert grown.partition(2) == "2"
    with pytest.raises(RequestRefused) as refused:
        grown.partition(3)
    assert refused.value.reason is RefusalReason.TOPIC_MISSING
    await bench.cluster.create("reserved-topic", 1)
    assert await bench.topics.names() == ["t"]
    assert await bench.topics.find("reserved-topic") is None
    await bench.topics.delete("t")
    assert await bench.topics.find("t") is None
    with pytest.raises(RequestRefused):
        await bench.topics.delete("t")


def test_a_partition_that_is_away_is_not_ready() -> None:
    topic = ListenedTopic("t", "t", {0: "a-0", 2: "a-1"}, is_partitioned=True)
    assert topic.count == 3
    with pytest.raises(RequestRefused) as refused:
        topic.partition(1)
    assert refused.value.reason is RefusalReason.NOT_READY


async def test_clients_may_not_create_what_is_not_allowed(bench: Listened) -> None:
    for partitions in (0, -1, 1001, 1 << 31):
        with pytest.raises(RequestRefused):
            await bench.topics.create("t", partitions, is_partitioned=True)
    with pytest.raises(RequestRefused):
        await bench.topics.create("reserved-topic", 1, is_partitioned=True)
    assert bench.cluster.broker.topics == {}
    forbidden = Listened("listened-topics", partitions=None)
    with pytest.raises(RequestRefused) as refused:
        await forbidden.topics.find_or_create("t")
    assert refused.value.reason is RefusalReason.TOPIC_MISSING


async def test_one_request_serves_all_who_ask(bench: Listened) -> None:
    await bench.cluster.create("t", 1)
    gate = bench.requests.hang("describe")
    asking = [spawn(bench.topics.find("t"), "find") for _ in range(5)]
    await bench.requests.until_waiting("describe")
    await cancel(asking[1])
    gate.set()
    found = [await each for each in asking if not each.cancelled()]
    assert len(found) == 4
    assert all(topic is found[0] for topic in found)
    assert bench.requests.calls["describe"] == 1
    assert len(bench.topics._asking) == 0


async def test_the_one_who_asks_gives_up_and_the_others_ask_again(bench: Listened) -> None:
    await bench.cluster.create("t", 1)
    bench.requests.hang("describe")
    asking = [spawn(bench.topics.find("t"), "find") for _ in range(3)]
    await bench.requests.until_waiting("describe")
    await cancel(asking[0])
    await bench.requests.until_waiting("describe")
    late = spawn(bench.topics.find("t"), "late")
    await settle()
    assert bench.requests.waiting["describe"] == 1, "still one at a time"
    bench.requests.release()
    for each in (asking[1], asking[2], late):
        assert await each is not None
    assert len(bench.topics._asking) == 0


async def test_a_fresh_description_is_not_one_that_was_asked_for_before(bench: Listened) -> None:
    await bench.cluster.create("t", 1)
    gate = bench.requests.hang("describe")  # which has looked already, and answers later
    early = spawn(bench.topics.find("t"), "early")
    await bench.requests.until_waiting("describe")
    bench.cluster.broker.create("t", 2)
    await asyncio.sleep(0.001)
    fresh = spawn(bench.topics.find("t", fresh=True), "fresh")
    await settle()
    gate.set()
    found, again = await early, await fresh
    assert found is not None
    assert again is not None
    assert (found.count, again.count) == (1, 2)


async def test_a_topic_that_is_gone_is_not_remembered(bench: Listened) -> None:
    await bench.cluster.create("t", 1)
    assert await bench.topics.find("t") is not None
    bench.cluster.broker.delete("t")
    assert await bench.topics.find("t", fresh=True) is None
    assert await bench.topics.find("t") is None


async def test_a_cluster_that_hangs_or_fails_leaves_nothing_behind(bench: Listened, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.cluster.create("t", 1)
    bench.requests.errors["describe"] = ClusterError("away")
    with pytest.raises(ClusterError, match="away"):
        await bench.topics.find("t")
    monkeypatch.setattr(limits_module, "REQUEST_TIMEOUT_S", 0.01, raising=False)
    bench.requests.hang("describe")
    with pytest.raises(ClusterError, match="did not finish"):
        async with asyncio.timeout(5):
            await bench.topics.find("t")
    assert len(bench.topics._asking) == 0
    monkeypatch.undo()
    bench.requests.release()
    assert await bench.topics.find("t") is not None


async def test_what_is_remembered_is_bounded(bench: Listened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "MAX_KNOWN_TOPICS", 10)
    for number in range(50):
        await bench.topics.find_or_create(f"t{number}")
    assert len(bench.topics._known) <= 10
    assert len(bench.topics._one_partition) <= 10


async def test_a_topic_that_is_never_seen_is_an_error(bench: Listened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "CREATE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(bench.cluster.broker, "create", lambda *_: None)
    with pytest.raises(ClusterError, match="is not seen yet"):
        await bench.topics.create("t", 1, is_partitioned=False)


# --- fixed names --------------------------------------------------------------------------------------------------------------


FIXED = FixedNames(
    in_cluster=lambda name: f"stored-{name[1:]}" if name.startswith("%") else None,
    for_clients=lambda name: f"%{name[7:]}" if name.startswith("stored-") else None,
)


@pytest.fixture
def fixed(bench: Listened) -> ListenedTopics:
    """The topics of a listener with a template, except for names that begin with `%`."""
    return ListenedTopics(
        bench.cluster,
        TopicTemplate("prefix/{topic}"),
        create_partitions=1,
        is_reserved=lambda name: name.endswith("reserved"),
        fixed_names=FIXED,
    )


def test_the_template_does_not_count_for_fixed_names(fixed: ListenedTopics) -> None:
    for name, backing in {"prefix/t": "t", "%t": "stored-t", "prefix/%t": "%t"}.items():
        assert (fixed.backing_name(name), fixed.client_name(backing)) == (backing, name)
    assert fixed.backing_name("t") is None


def test_a_fixed_name_may_be_reserved(fixed: ListenedTopics) -> None:
    assert fixed.backing_name("%reserved") is None
    assert fixed.client_name("stored-reserved") is None


def test_fixed_names_are_escaped(bench: Listened, fixed: ListenedTopics) -> None:
    rule = NameRule(re.compile("[a-z]"), re.compile("[a-z0-9_]"), 100, "letters, digits and underscores")
    bench.cluster.capabilities = replace(bench.cluster.capabilities, topic_name=rule)
    assert fixed.backing_name("%t") == "storedx_2d_t"
    assert fixed.client_name("storedx_2d_t") == "%t"
    assert fixed.client_name("stored-t") is None, "no name of a client becomes this one"


async def test_topics_with_fixed_names_are_found_listed_created_and_deleted(bench: Listened, fixed: ListenedTopics) -> None:
    assert await fixed.find("%t") is None
    created = await fixed.find_or_create("%t")
    assert (created.name, created.backing) == ("%t", "stored-t")
    await fixed.find_or_create("prefix/u")
    assert await fixed.names() == ["%t", "prefix/u"]
    assert sorted(bench.cluster.broker.topics) == ["stored-t", "u"]
    assert await fixed.find("%t") is created
    await fixed.delete("%t")
    assert await fixed.find("%t") is None
