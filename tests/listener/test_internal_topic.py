"""A topic that the gateways of a listener keep for themselves: several append, one at a time reads."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Inbound, InboundLane, Sharing
from mqbridge.adapter.names import NameRule
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.listener import internal_topic as internal_topic_module
from mqbridge.listener import limits as limits_module
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.listener.limits import InFlightBytes
from mqbridge.listener.parking import RELEASE_WAIT_S
from mqbridge.message import Batch, Message
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.reader import MemoryReader
from tests.listener.faulty import Listened, until
from tests.listener.feeds import settle
from tests.patience import PATIENCE_S

NAME = "internal-ends"


class Follower:
    """A gateway that follows the topic."""

    def __init__(self, bench: Listened, member: str) -> None:
        self.topic = InternalTopic(bench.cluster, NAME, member, bench.in_flight)
        self.received: list[bytes | None] = []
        self.lanes = 0

    async def run_lane(self, lane: InboundLane, _: Inbound) -> None:
        self.lanes += 1
        try:
            while True:
                batch = await lane.receive()
                self.received += [message.payload for message in batch.messages]
                lane.acknowledge(batch)
        finally:
            self.lanes -= 1

    def follow(self) -> None:
        self.topic.follow(self.run_lane)


class InternalBench(Listened):
    def __init__(self) -> None:
        super().__init__("internal-topic")
        self.followers: list[Follower] = []
        self.in_flight = InFlightBytes(1 << 20)

    def follower(self, member: str = "gateway") -> Follower:
        self.followers.append(Follower(self, member))
        return self.followers[-1]

    @property
    def stored(self) -> list[bytes | None]:
        return [message.payload for message in self.cluster.broker.topics[NAME][0].messages]


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[InternalBench]:
    made = InternalBench()
    yield made
    made.requests.release()
    for follower in made.followers:
        await follower.topic.close()
    assert made.cluster.open_outbounds == made.cluster.members(NAME) == made.readers(NAME) == 0
    await made.close()
    assert made.in_flight.used == 0


def messages(*payloads: bytes) -> list[Message]:
    return [Message(payload) for payload in payloads]


# --- appending ----------------------------------------------------------------------------------------------------------------


async def test_appending_creates_the_topic_and_returns_positions(bench: InternalBench) -> None:
    topic = bench.follower().topic
    assert not await topic.exists()
    assert await topic.append(messages(b"a", b"b")) == [(0,), (1,)]
    assert await topic.append(messages(b"c")) == [(2,)]
    assert await topic.exists()
    assert len(bench.cluster.broker.topics[NAME]) == 1
    assert bench.stored == [b"a", b"b", b"c"]
    assert bench.requests.calls["outbound"] == 1


async def test_a_topic_that_exists_is_used(bench: InternalBench) -> None:
    await bench.cluster.create(NAME, 1)
    bench.send(1, topic=NAME)
    topic = bench.follower().topic
    assert await topic.exists()
    await topic.ensure()
    assert await topic.append(messages(b"a")) == [(1,)]


async def test_several_append_at_once(bench: InternalBench) -> None:
    topics = [bench.follower(f"gateway-{number}").topic for number in range(3)]
    appending = [topics[number % 3].append(messages(b"%d" % number)) for number in range(12)]
    found = await asyncio.gather(*appending)
    assert sorted(position for positions in found for position in positions) == [(number,) for number in range(12)]
    assert [bench.stored[offset] for ((offset,),) in found] == [b"%d" % number for number in range(12)]
    assert bench.requests.calls["outbound"] == 3


async def test_the_topic_is_waited_for_until_it_is_seen(bench: InternalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    create, created = bench.cluster.broker.create, list[str]()
    monkeypatch.setattr(bench.cluster.broker, "create", lambda topic, _: created.append(topic))
    ensuring = spawn(bench.follower().topic.ensure(), "ensure")
    await until(lambda: bench.requests.calls["describe"] >= 3)
    assert created == [NAME], "it is created once"
    create(NAME, 1)
    async with asyncio.timeout(PATIENCE_S):
        await ensuring


async def test_names_are_escaped_where_the_cluster_refuses_them(bench: InternalBench) -> None:
    """Each by the rule for its kind of names."""
    letters, short = re.compile("[a-z]"), NameRule(re.compile("[a-z-]"), re.compile("[a-z-]"), 100, "letters")
    topics = NameRule(letters, re.compile("[a-z0-9_]"), 100, "letters, digits and underscores")
    bench.cluster.capabilities = replace(bench.cluster.capabilities, topic_name=topics, group_name=short)
    follower = bench.follower()
    assert follower.topic.name == "internalx_2d_ends"
    follower.follow()
    await until(lambda: follower.lanes == 1)
    assert (bench.cluster.inbound_specs[0].topics, bench.cluster.inbound_specs[0].group) == (("internalx_2d_ends",), NAME)


async def test_a_message_that_is_not_stored_is_an_error(bench: InternalBench) -> None:
    topic = bench.follower().topic
    bench.cluster.broker.faults.refuse = lambda message: "no" if message.payload == b"b" else None
    with pytest.raises(ClusterError, match=f"{NAME}: no") as refused:
        await topic.append(messages(b"a", b"b"))
    assert refused.value.failure is Failure.REFUSED
    assert await topic.append(messages(b"c"))
    assert bench.requests.calls["outbound"] == 1, "nothing is wrong with the outbound"


async def test_an_outbound_that_fails_is_replaced(bench: InternalBench) -> None:
    topic = bench.follower().topic
    await topic.append(messages(b"a"))
    bench.cluster.broker.faults.fatal = "closed"
    with pytest.raises(ClusterError, match="closed"):
        await topic.append(messages(b"b"))
    assert bench.cluster.open_outbounds == 0
    bench.cluster.broker.faults.fatal = None
    await topic.append(messages(b"c"))
    assert (bench.stored, bench.requests.calls["outbound"]) == ([b"a", b"c"], 2)


async def test_a_topic_that_was_deleted_is_made_again(bench: InternalBench) -> None:
    topic = bench.follower().topic
    await topic.append(messages(b"a"))
    bench.cluster.broker.delete(NAME)
    with pytest.raises(ClusterError):
        await topic.append(messages(b"b"))
    await topic.append(messages(b"c"))
    assert bench.stored == [b"c"]


async def test_an_append_ends_at_its_deadline(bench: InternalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bench.follower().topic
    await topic.append(messages(b"a"))
    monkeypatch.setattr(internal_topic_module, "APPEND_S", 0.01)
    bench.cluster.broker.faults.hold_receipts = True
    with pytest.raises(ClusterError, match="nothing was stored"):
        await topic.append(messages(b"b"))
    bench.cluster.broker.release_receipts()
    monkeypatch.undo()
    await topic.append(messages(b"c"))
    assert bench.requests.calls["outbound"] == 2


async def test_the_bytes_of_an_append_are_in_flight_until_the_cluster_has_answered(bench: InternalBench) -> None:
    """Also if the caller has given up."""
    topic = bench.follower().topic
    await topic.append(messages(b"a"))
    assert bench.in_flight.used == 0
    bench.cluster.broker.faults.hold_receipts = True
    appending = spawn(topic.append(messages(bytes(1000))), "append")
    await until(lambda: bench.in_flight.used >= 1000)
    await cancel(appending)
    assert bench.in_flight.used >= 1000
    bench.cluster.broker.release_receipts()
    await until(lambda: bench.in_flight.used == 0)
    bench.cluster.broker.faults.hold_receipts = False
    assert await topic.append(messages(b"c")) == [(2,)]


async def test_those_who_append_while_another_one_fails_use_the_new_outbound(
    bench: InternalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of the outbound before does not close the one after."""
    topic = bench.follower().topic
    await topic.append(messages(b"a"))
    monkeypatch.setattr(internal_topic_module, "APPEND_S", 0.01)
    bench.cluster.broker.faults.hold_receipts = True
    failing = [spawn(topic.append(messages(b"b")), "append", log_errors=False) for _ in range(2)]
    found = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(each) for each in found] == [ClusterError] * 2
    bench.cluster.broker.release_receipts()
    await topic.append(messages(b"c"))
    assert bench.requests.calls["outbound"] == 2


@pytest.mark.parametrize("request_name", ["describe", "outbound"])
async def test_opening_ends_at_its_deadline(bench: InternalBench, monkeypatch: pytest.MonkeyPatch, request_name: str) -> None:
    monkeypatch.setattr(limits_module, "REQUEST_TIMEOUT_S", 0.01)
    bench.requests.hang(request_name)
    topic = bench.follower().topic
    with pytest.raises(ClusterError, match="did not finish"):
        await topic.append(messages(b"a"))
    monkeypatch.undo()
    bench.requests.release()
    assert await topic.append(messages(b"a")) == [(0,)]


@pytest.mark.parametrize("how", ["exists", "read"])
async def test_requests_end_at_their_deadline(bench: InternalBench, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(limits_module, "REQUEST_TIMEOUT_S", 0.01)
    bench.requests.hang("describe")
    topic = bench.follower().topic
    with pytest.raises(ClusterError, match="did not finish"):
        await (topic.exists() if how == "exists" else topic.read((0,)))


# --- following ----------------------------------------------------------------------------------------------------------------


async def test_one_of_two_that_follow_reads(bench: InternalBench) -> None:
    first, second = bench.follower("first"), bench.follower("second")
    await first.topic.append(messages(b"a"))
    first.follow()
    await until(lambda: first.received == [b"a"])
    second.follow()
    await until(lambda: bench.cluster.members(NAME) == 2)
    await second.topic.append(messages(b"b"))
    await until(lambda: first.received == [b"a", b"b"])
    assert (first.lanes, second.lanes, second.received) == (1, 0, [])
    await first.topic.leave()
    assert first.lanes == 0
    await second.topic.append(messages(b"c"))
    await until(lambda: second.received == [b"c"])


async def test_the_membership_is_one_of_an_ordered_group(bench: InternalBench) -> None:
    follower = bench.follower("me")
    follower.follow()
    await until(lambda: bench.cluster.members(NAME) == 1)
    (spec,) = bench.cluster.inbound_specs
    assert (spec.topics, spec.group, spec.member, spec.sent_back) == ((NAME,), NAME, "me", False)
    assert (spec.sharing, spec.release_wait_s) == (Sharing.FAILOVER, RELEASE_WAIT_S)


async def test_following_again_changes_nothing(bench: InternalBench) -> None:
    follower = bench.follower()
    follower.follow()
    follower.follow()
    await until(lambda: follower.lanes == 1)
    follower.follow()
    await settle()
    assert bench.cluster.members(NAME) == 1
    await follower.topic.leave()
    await follower.topic.leave()
    assert bench.cluster.members(NAME) == 0
    follower.follow()
    await until(lambda: follower.lanes == 1)


@pytest.mark.parametrize("request_name", ["describe", "inbound"])
async def test_a_join_that_fails_is_tried_again(bench: InternalBench, monkeypatch: pytest.MonkeyPatch, request_name: str) -> None:
    monkeypatch.setattr(Backoff, "delay", lambda _: 0.001)
    bench.requests.errors[request_name] = ClusterError("away")
    follower = bench.follower()
    follower.follow()
    await until(lambda: bench.requests.calls[request_name] >= 3)
    bench.requests.release()
    await until(lambda: follower.lanes == 1)


@pytest.mark.parametrize("request_name", ["describe", "inbound"])
async def test_leaving_ends_a_join(bench: InternalBench, request_name: str) -> None:
    bench.requests.hang(request_name)
    follower = bench.follower()
    follower.follow()
    await bench.requests.until_waiting(request_name)
    async with asyncio.timeout(PATIENCE_S):
        await follower.topic.leave()
    bench.requests.release()
    await settle()
    assert bench.cluster.members(NAME) == follower.lanes == 0


async def test_a_lane_that_has_failed_is_read_again(bench: InternalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "delay", lambda _: 0.001)
    follower = bench.follower()
    follower.topic.read_again("nothing is read yet")
    await follower.topic.append(messages(b"a"))
    follower.follow()
    await until(lambda: follower.received == [b"a"])
    bench.cluster.broker.progress.clear()
    follower.topic.read_again("it is broken")
    await until(lambda: follower.received == [b"a", b"a"])
    assert bench.cluster.members(NAME) == 1


@pytest.mark.parametrize("acknowledges_dropped", [True, False])
async def test_a_cluster_may_need_the_contents_of_what_it_acknowledges(bench: InternalBench, acknowledges_dropped: bool) -> None:
    bench.cluster.capabilities = replace(bench.cluster.capabilities, acknowledges_dropped=acknowledges_dropped)
    assert bench.follower().topic.needs_contents == (not acknowledges_dropped)


# --- reading by position ------------------------------------------------------------------------------------------------------


async def test_messages_are_read_by_position(bench: InternalBench) -> None:
    topic = bench.follower().topic
    assert await topic.read((0,)) is None, "there is no topic"
    await topic.append(messages(b"a", b"b", b"c"))
    found = [await topic.read((offset,)) for offset in range(4)]
    assert [None if message is None else message.payload for message in found] == [b"a", b"b", b"c", None]
    bench.cluster.broker.delete_below(NAME, 0, 2)
    assert await topic.read((1,)) is None
    assert bench.readers(NAME) == 0


async def test_a_message_that_is_lost_while_it_is_looked_for_is_none(
    bench: InternalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.follower().topic
    await topic.append(messages(b"a"))

    async def receive(_: MemoryReader) -> Batch | None:
        raise GapError("deleted", (1,))

    monkeypatch.setattr(MemoryReader, "receive", receive)
    assert await topic.read((0,)) is None
    assert bench.readers(NAME) == 0


@pytest.mark.parametrize("found", ["nothing", "another"])
async def test_another_message_is_none(bench: InternalBench, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    topic = bench.follower().topic
    await topic.append(messages(b"a", b"b"))

    async def receive(_: MemoryReader) -> Batch | None:
        return None if found == "nothing" else Batch.of([Message(b"b", position=(1,))])

    monkeypatch.setattr(MemoryReader, "receive", receive)
    assert await topic.read((0,)) is None


async def test_a_read_that_is_given_up_leaves_no_reader(bench: InternalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bench.follower().topic
    await topic.append(messages(b"a"))

    async def receive(_: MemoryReader) -> Batch | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(MemoryReader, "receive", receive)
    reading = spawn(topic.read((0,)), "read")
    await until(lambda: bench.readers(NAME) == 1)
    await cancel(reading)
    assert bench.readers(NAME) == 0


# --- the end ------------------------------------------------------------------------------------------------------------------


async def test_closing_leaves_and_closes(bench: InternalBench) -> None:
    follower = bench.follower()
    await follower.topic.append(messages(b"a"))
    follower.follow()
    await until(lambda: follower.received == [b"a"])
    await follower.topic.close(asyncio.get_running_loop().time() + PATIENCE_S)
    assert (bench.cluster.members(NAME), bench.cluster.open_outbounds, follower.lanes) == (0, 0, 0)
    await follower.topic.close()


async def test_a_topic_that_was_closed_is_not_opened_again(bench: InternalBench) -> None:
    follower = bench.follower()
    await follower.topic.append(messages(b"a"))
    await follower.topic.close()
    with pytest.raises(ClusterError, match=f"{NAME} was closed"):
        await follower.topic.append(messages(b"b"))
    follower.follow()
    await settle()
    assert (bench.requests.calls["outbound"], bench.cluster.open_outbounds, bench.cluster.members(NAME)) == (1, 0, 0)


async def test_those_who_append_while_a_topic_is_closed_get_an_error(bench: InternalBench) -> None:
    bench.requests.hang("outbound")
    topic = bench.follower().topic
    appending = spawn(topic.append(messages(b"a")), "append", log_errors=False)
    given_up = spawn(topic.append(messages(b"b")), "append", log_errors=False)
    await bench.requests.until_waiting("outbound")
    await cancel(given_up)
    assert given_up.cancelled()
    await topic.close()
    with pytest.raises(ClusterError, match=f"{NAME} was closed"):
        await appending
    bench.requests.release()
