"""A consumer and its Master: events, echoes, and rejoining."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ConnectionLost, LaneRevoked, ServerRefused
from mqbridge.net.tasks import cancel
from mqbridge.tubemq.client import group_consumer as module
from mqbridge.tubemq.client.held_partitions import StartOffset
from mqbridge.tubemq.client.membership import EVENT_DONE
from mqbridge.tubemq.client.pack_consumer import PackConsumer
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatResponseB2C
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto, HeartResponseM2C, MasterAuthorizedInfo, RegisterResponseM2C
from mqbridge.tubemq.wire.rpc import OP_REGISTER, OP_UNREGISTER
from tests.patience import PATIENCE_S
from tests.tubemq.client.fakes import MasterScript, Script, pack, registered, unregistered

HELD = "#1:10.0.0.5:8123#demo:"


def joined(code: int = 200) -> RegisterResponseM2C:
    return RegisterResponseM2C(success=code == 200, errCode=code, errMsg="said", notAllocated=True)


def beat(event: EventProto | None = None, code: int = 200) -> HeartResponseM2C:
    token = MasterAuthorizedInfo(visitAuthorizedToken=5)
    return HeartResponseM2C(success=code == 200, errCode=code, errMsg="said", event=event, authorizedInfo=token)


def event(kind: int, *partitions: int, number: int = 9) -> EventProto:
    return EventProto(rebalanceId=number, opType=kind, subscribeInfo=[f"c@g1{HELD}{p}" for p in partitions])


class Scene:
    """A consumer between a scripted Master and a scripted Broker.

    The Broker hears of it seldom: a heartbeat in between would take an answer that is meant for another request.
    """

    def __init__(self, *, broker_heartbeat_s: float = 3600.0, **settings: Any) -> None:
        self.master, self.broker = MasterScript(), Script()
        self.master.connections = self.broker
        self.consumer = PackConsumer(self.master, "g1", ["demo"], heartbeat_s=0.01, **settings)  # type: ignore[arg-type]
        self.consumer.held_partitions.heartbeats.interval_s = broker_heartbeat_s

    async def play(self, *answers: Any) -> None:
        """Let the Master give these answers, and wait until it is asked once more than that."""
        self.master.then(*answers)
        await self.consumer.start()
        await asyncio.wait_for(self.master.silent.wait(), PATIENCE_S)

    def reports(self) -> list[list[str]]:
        """What the heartbeats reported as held, where they did."""
        asked = [request for request in self.master.asked if hasattr(request, "reportSubscribeInfo")]
        return [[info.split(HELD)[1] for info in request.subscribeInfo] for request in asked if request.reportSubscribeInfo]


@pytest_asyncio.fixture
async def scenes() -> AsyncIterator[Any]:
    made: list[Scene] = []

    def make(**settings: Any) -> Scene:
        made.append(Scene(**settings))
        return made[-1]

    yield make
    for scene in made:
        scene.master.silent.clear()
        scene.master.then(*[beat()] * 3)
        scene.broker.then(*[unregistered()] * 8)
        await cancel(*scene.consumer._tasks, *scene.consumer.held_partitions._tasks)


@pytest.mark.parametrize("kind", [1, 10])
async def test_connect_takes_reports_and_hands_out(scenes: Any, kind: int) -> None:
    scene = scenes(start=StartOffset.LATEST, filters={"demo": {"t2", "t1"}})
    scene.broker.then(registered(), registered())
    await scene.play(joined(), beat(event(kind, 0, 3)), beat())
    assert list(scene.master.asked[0].topicCondition) == ["demo#t1,t2"]
    assert [(r.partitionId, r.readStatus, list(r.filterCondStr)) for r in scene.broker.asked[:2]] == [
        (0, 1, ["t1", "t2"]),
        (3, 1, ["t1", "t2"]),
    ]
    echo = next(request for request in scene.master.asked[1:] if request.HasField("event"))
    assert (echo.event.status, echo.event.rebalanceId, echo.event.opType) == (EVENT_DONE, 9, kind)
    assert sorted(scene.reports()[0]) == ["0", "3"]
    assignments = scene.consumer.assignments()
    assert {(await anext(assignments)).ref.partition for _ in range(2)} == {0, 3}


async def test_what_cannot_be_taken_is_not_reported(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.tubemq.client.partition_registration.OCCUPIED_RETRY_S", 0.0)
    scene = scenes()
    occupied = unregistered()
    occupied.success, occupied.errCode = False, 410
    scene.broker.then(occupied, occupied)
    await scene.play(joined(), beat(event(1, 0)), beat())
    assert scene.reports()[0] == []
    assert not scene.consumer.held_partitions.held


@pytest.mark.parametrize("is_lost", [False, True], ids=["given back", "lost"])
async def test_a_get_that_outlives_its_partition_is_fenced(scenes: Any, is_lost: bool) -> None:
    """Only later is it known to be lost: it may still arrive, and would confirm what is out by then."""
    scene = scenes()
    scene.broker.then(registered())
    await scene.play(joined(), beat(event(1, 0)), beat())
    held = await anext(scene.consumer.assignments())
    asked, lost = asyncio.Event(), asyncio.Event()

    async def late() -> Exception:
        asked.set()
        await lost.wait()
        return ConnectionLost("a get")

    scene.broker.then(late)
    fetching = asyncio.ensure_future(held.fetch())
    await asked.wait()
    if is_lost:
        held.on_heartbeat_failure(412, held.state.generation)
    else:
        scene.broker.then(unregistered())
        await held.release()
    scene.broker.then(registered())
    again = await scene.consumer.held_partitions.acquire(held.ref)
    assert again.client_id != scene.consumer.membership.client_id
    lost.set()
    with pytest.raises(LaneRevoked):
        await fetching


async def test_closing_ends_at_its_deadline_also_while_a_partition_is_taken(scenes: Any) -> None:
    scene = scenes()
    asked = asyncio.Event()

    async def silent() -> Exception:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    scene.broker.then(silent, silent)
    scene.master.then(joined(), beat(event(1, 0)))
    await scene.consumer.start()
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        await scene.consumer.close(0.05)
    assert not scene.consumer.held_partitions.held


async def test_a_partition_that_was_fenced_comes_back_under_a_fresh_id(scenes: Any) -> None:
    """What was given up carries the member's own id, and may still arrive."""
    scene = scenes()
    scene.broker.then(registered())
    await scene.play(joined(), beat(event(1, 0)), beat())
    held = await anext(scene.consumer.assignments())
    scene.broker.then(ConnectionLost("a get"), unregistered(), registered(), pack(0))
    await held.fetch()
    held.confirm()
    scene.broker.then(unregistered(), registered())
    await held.release()
    again = await scene.consumer.held_partitions.acquire(held.ref)
    own = scene.consumer.membership.client_id
    assert [request.clientId for request in scene.broker.asked if getattr(request, "opType", None) == OP_REGISTER] == [
        own,
        f"{own}-run1",
        again.client_id,
    ]
    assert again.client_id not in (own, f"{own}-run1")


async def test_an_event_counts_although_the_rules_beside_it_cannot_be_read(scenes: Any) -> None:
    """The Master hands an event out once; and it repeats rules only until their id is known."""
    scene = scenes()
    scene.broker.then(registered())
    answer = beat(event(10, 0))
    answer.defFlowCheckId, answer.defFlowControlInfo = 5, '[{"type":0,"rule":[{"start":"08:00","freqInMs":"soon"}]}]'
    await scene.play(joined(), answer, beat())
    assert scene.reports()[0] == ["0"]
    assert scene.master.asked[-1].defFlowCheckId == 5
    assert len(scene.consumer.held_partitions.held) == 1


@pytest.mark.parametrize("kind", [2, 20])
async def test_disconnect_gives_back_and_reports_the_rest(scenes: Any, kind: int) -> None:
    scene = scenes()
    scene.broker.then(registered(), registered(), unregistered())
    await scene.play(joined(), beat(event(1, 0, 1)), beat(event(kind, 1, 5, number=10)), beat())
    assert scene.broker.asked[2].partitionId == 1
    assert sorted(scene.reports()[0]) == ["0", "1"]
    assert scene.reports()[1] == ["0"]


async def test_an_event_may_come_with_the_answer_to_the_echo(scenes: Any) -> None:
    scene = scenes()
    scene.broker.then(registered(), registered())
    await scene.play(joined(), beat(event(1, 0)), beat(event(1, 1, number=11)), beat())
    echoes = [request.event.rebalanceId for request in scene.master.asked[1:] if request.HasField("event")]
    assert echoes == [9, 11]


async def test_a_second_assignment_of_a_partition_reads_on(scenes: Any) -> None:
    """LATEST counts only once: else what arrived between would be skipped."""
    scene = scenes(start=StartOffset.LATEST)
    scene.broker.then(registered(), unregistered(), registered())
    steps = [event(1, 0), event(2, 0, number=10), event(1, 0, number=11)]
    await scene.play(joined(), *(beat(step) for step in steps), beat())
    said = [(request.opType, request.readStatus) for request in scene.broker.asked if hasattr(request, "opType")]
    assert said == [(OP_REGISTER, 1), (OP_UNREGISTER, 1), (OP_REGISTER, 0)]


async def test_a_master_that_forgot_us_is_told_what_we_hold(scenes: Any) -> None:
    scene = scenes()
    scene.broker.then(registered())
    await scene.play(joined(), beat(event(1, 2)), beat(), beat(code=411), joined(), beat())
    again = [request for request in scene.master.asked if hasattr(request, "topicList")][1]
    assert [info.split(HELD)[1] for info in again.subscribeInfo] == ["2"]
    assert len(scene.consumer.held_partitions.held) == 1


async def test_a_master_without_topics_yet_is_waited_for(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Master that has just started knows no topic before the Brokers have told it."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    scene = scenes()
    await scene.play(joined(), beat(code=411), joined(431), beat(code=411), joined(), beat())
    assert scene.consumer._permanent_error is None


async def test_a_group_that_does_not_want_us_ends_the_assignments(scenes: Any) -> None:
    scene = scenes()
    scene.master.then(joined(), beat(code=411), joined(425))
    await scene.consumer.start()
    with pytest.raises(ServerRefused, match="subscribe to other topics"):
        await asyncio.wait_for(anext(scene.consumer.assignments()), PATIENCE_S)


@pytest.mark.parametrize("code", [431, 450])
async def test_a_fatal_refusal_to_join_is_raised_at_once(scenes: Any, code: int) -> None:
    scene = scenes()
    scene.master.then(joined(code))
    with pytest.raises(ServerRefused, match="demo") as caught:
        await scene.consumer.start()
    assert caught.value.code == code


async def test_every_sixth_heartbeat_reports(scenes: Any) -> None:
    scene = scenes()
    await scene.play(joined(), *[beat()] * 12)
    flags = [request.reportSubscribeInfo for request in scene.master.asked[1:]]
    assert flags[:12] == [False] * 5 + [True] + [False] * 5 + [True]


async def test_broker_heartbeats_say_what_is_lost(scenes: Any) -> None:
    scene = scenes(broker_heartbeat_s=0.01)
    scene.broker.then(registered(), registered())
    scene.broker.then(
        HeartBeatResponseB2C(
            success=True, errCode=200, errMsg="", hasPartFailure=True, failureInfo=[f"412:{HELD[1:]}0", f"411:{HELD[1:]}1"]
        )
    )
    await scene.play(joined(), beat(event(1, 0, 1)), beat())
    async with asyncio.timeout(PATIENCE_S):
        while len(scene.consumer.held_partitions.held) > 1:
            await asyncio.sleep(0.01)
    ((key, left),) = scene.consumer.held_partitions.held.items()
    assert key == (1, "demo", 1)
    assert not left.state.is_registered
    assert scene.broker.asked[2].authInfo.visitAuthorizedToken == 5
