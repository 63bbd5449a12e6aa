"""Publishers share outbounds, replace those that are broken, and leave none behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, RefusalReason, RequestRefused
from mqbridge.listener import limits as limits_module
from mqbridge.listener import publishers as publishers_module
from mqbridge.listener.limits import InFlightBytes
from mqbridge.listener.publisher import Publisher, State, Stored
from mqbridge.listener.publishers import Publishers, sender_partition
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Batch, Message
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.config import MemoryConfig
from tests.listener.faulty import Listened, until
from tests.listener.feeds import settle
from tests.patience import PATIENCE_S


class PublishingBench(Listened):
    def __init__(self, *, growing_outbound: bool = True) -> None:
        super().__init__(
            "sharing-publishers", config=MemoryConfig(broker="sharing-publishers", growing_outbound=growing_outbound)
        )
        self.in_flight = InFlightBytes(1000)
        self.publishers = Publishers(self.cluster, self.in_flight, self._open_dead_letters, in_order=True)

    async def _open_dead_letters(self) -> DeadLetters:
        return DeadLetters("app", await self.cluster.outbound(OutboundSpec("dead")), "memory/dead")

    async def publish(self, publisher: Publisher, *, sequence: int | None = None, partition: int = 0) -> Stored:
        answers: list[Stored] = []
        message = Message(b"a", position=() if sequence is None else (sequence,))
        source = None if sequence is None else sender_partition(ListenedTopic("t", "t", {0: "0"}, is_partitioned=False), "sdk")
        publisher.publish(partition, Batch.of([message], source), answers.append)
        await until(lambda: bool(answers))
        return answers[0]

    async def until_closed(self) -> None:
        await until(lambda: self.cluster.open_outbounds == 0 and not self.publishers._closing)
        assert not self.publishers._shared
        assert not self.publishers._of
        assert len(self.publishers._opening) == 0


@pytest_asyncio.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PublishingBench]:
    monkeypatch.setattr(publishers_module, "LINGER_S", 0.01)
    made = PublishingBench()
    yield made
    made.requests.release()
    made.cluster.broker.reconnect()
    await made.publishers.close_all()
    await made.until_closed()
    await made.close()
    assert made.in_flight.used == 0


async def test_publishers_of_a_topic_share_an_outbound_which_is_closed_after_the_last(bench: PublishingBench) -> None:
    topic = await bench.topic(2)
    opened = await asyncio.gather(*(bench.publishers.open(topic, number % 2) for number in range(10)))
    assert bench.requests.calls["outbound"] == 1
    for publisher in opened[:5]:
        await bench.publishers.close(publisher)
    for publisher in opened[5:]:
        bench.publishers.abandon(publisher)
    await bench.until_closed()


async def test_a_broken_outbound_is_replaced_when_its_producer_is_made_again(bench: PublishingBench) -> None:
    """The client makes its producer again; with the same outbound, that would go on for ever."""
    topic = await bench.topic()
    for how in ("abandon", "close"):
        publisher, other = await bench.publishers.open(topic, 0), await bench.publishers.open(topic, 0)
        bench.cluster.broker.delete("t")
        await bench.topic()
        assert (await bench.publish(publisher)).problem is not None
        assert publisher.state is State.BROKEN
        if how == "abandon":
            bench.publishers.abandon(publisher)
        else:
            await bench.publishers.close(publisher)
        again = await bench.publishers.open(topic, 0)
        assert (await bench.publish(again)).problem is None
        assert (await bench.publish(other)).problem is not None
        for each in (again, other):
            bench.publishers.abandon(each)
        await bench.until_closed()


async def test_an_outbound_breaks_while_others_open_it(bench: PublishingBench) -> None:
    topic = await bench.topic()
    first = await bench.publishers.open(topic, 0)
    bench.cluster.broker.faults.fatal = "not permitted"
    assert (await bench.publish(first)).problem is not None
    gate = bench.requests.hang("outbound")
    opening = [spawn(bench.publishers.open(topic, 0), "open") for _ in range(3)]
    await bench.requests.until_waiting("outbound")
    bench.publishers.abandon(first)
    bench.cluster.broker.faults.fatal = None
    gate.set()
    opened = [await each for each in opening]
    assert bench.requests.calls["outbound"] == 2
    for publisher in opened:
        assert (await bench.publish(publisher)).problem is None
        bench.publishers.abandon(publisher)
    await bench.until_closed()


@pytest.mark.parametrize("growing_outbound", [True, False])
async def test_a_topic_grows(growing_outbound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers_module, "LINGER_S", 0.01)
    bench = PublishingBench(growing_outbound=growing_outbound)
    first = await bench.publishers.open(await bench.topic(1), 0)
    topic = await bench.topic(3)
    grown = await bench.publishers.open(topic, 2)
    assert bench.publishers.outbound_index(grown, 2) == 2
    assert (await bench.publish(first)).problem is None
    assert (await bench.publish(grown, partition=2)).problem is None
    with pytest.raises(RequestRefused) as refused:
        await bench.publishers.open(ListenedTopic("t", "t", {5: "5"}, is_partitioned=True), 5)
    assert refused.value.reason is RefusalReason.NOT_READY
    for publisher in (first, grown):
        bench.publishers.abandon(publisher)
    await bench.until_closed()
    await bench.close()


async def test_the_one_who_opens_fails_or_gives_up_and_one_of_the_others_opens(bench: PublishingBench) -> None:
    topic = await bench.topic()
    bench.requests.hang("outbound")
    opening = [spawn(bench.publishers.open(topic, 0), "open") for _ in range(3)]
    await bench.requests.until_waiting("outbound")
    await cancel(opening[0])
    await bench.requests.until_waiting("outbound")
    opening.append(spawn(bench.publishers.open(topic, 0), "late"))
    await settle()
    assert bench.requests.waiting["outbound"] == 1, "one at a time"
    bench.requests.release()
    for each in opening[1:]:
        bench.publishers.abandon(await each)
    assert bench.cluster.open_outbounds == 1
    await bench.until_closed()


async def test_a_cluster_that_hangs_or_fails_leaves_none_open(bench: PublishingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await bench.topic()
    bench.cluster.times = {"0": (0,)}
    monkeypatch.setattr(limits_module, "REQUEST_TIMEOUT_S", 0.02, raising=False)
    for request, sender in (("outbound", None), ("outbound", "sdk"), ("position_at", "sdk")):
        bench.requests.errors[request] = ClusterError("away")
        with pytest.raises(ClusterError, match="away"):
            await bench.publishers.open(topic, 0, sender)
        bench.requests.release()
        bench.requests.hang(request)
        with pytest.raises(ClusterError, match="did not finish"):
            async with asyncio.timeout(PATIENCE_S):
                await bench.publishers.open(topic, 0, sender)
        bench.requests.release()
        await bench.until_closed()


async def test_a_named_producer_goes_on_where_it_was(bench: PublishingBench) -> None:
    """Also where the backing knows no times, by which the search for its last message could begin."""
    topic = await bench.topic()
    for times in (None, {"0": (0,)}, {}):
        bench.cluster.times = times
        publisher = await bench.publishers.open(topic, 0, "sdk")
        expected = publisher.last_sequence
        assert expected is not None
        assert (await bench.publish(publisher, sequence=expected + 1)).problem is None
        await bench.publishers.close(publisher)
        again = await bench.publishers.open(topic, 0, "sdk")
        assert again.last_sequence == expected + 1
        assert (await bench.publish(again, sequence=expected + 1)).is_duplicate
        await bench.publishers.close(again)
        await bench.until_closed()
    assert len(bench.cluster.broker.topics["t"][0].messages) == 3


async def test_ten_thousand_producers_leave_nothing_behind(bench: PublishingBench) -> None:
    topics = [await bench.topic(1, f"t{number}") for number in range(100)]
    for _ in range(10):
        opened = await asyncio.gather(*(bench.publishers.open(topic, 0) for topic in topics for _ in range(10)))
        for publisher in opened:
            bench.publishers.abandon(publisher)
    await bench.until_closed()


async def test_nothing_is_opened_once_everything_is_closed(bench: PublishingBench) -> None:
    topic = await bench.topic()
    gate = bench.requests.hang("outbound")
    opening = spawn(bench.publishers.open(topic, 0), "open", log_errors=False)
    await bench.requests.until_waiting("outbound")
    await bench.publishers.close_all()
    gate.set()
    with pytest.raises(RequestRefused) as refused:
        await opening
    assert refused.value.reason is RefusalReason.NOT_READY
    await bench.until_closed()


async def test_the_outbound_of_a_deleted_topic_is_used_no_more(bench: PublishingBench) -> None:
    topic = await bench.topic()
    publisher = await bench.publishers.open(topic, 0)
    bench.publishers.forget(topic)
    bench.cluster.broker.delete("t")
    topic = await bench.topic()
    again = await bench.publishers.open(topic, 0)
    assert (await bench.publish(again)).problem is None
    for each in (publisher, again):
        bench.publishers.abandon(each)
    await bench.until_closed()


async def test_a_closed_publisher_stores_nothing_more(bench: PublishingBench) -> None:
    topic = await bench.topic()
    publisher = await bench.publishers.open(topic, 0)
    await bench.publishers.close(publisher)
    assert (await bench.publish(publisher)).problem is not None
    bench.publishers.abandon(publisher)
