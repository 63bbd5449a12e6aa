"""A consumer and its Master: events, echoes, and rejoining."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ConnectionLost, LaneRevoked, ServerRefused
from mqbridge.net.tasks import cancel
from mqbridge.tubemq.client.consumer import group_consumer as module
from mqbridge.tubemq.client.consumer.held_partitions import StartOffset
from mqbridge.tubemq.client.consumer.membership import EVENT_DONE
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatResponseB2C
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto, HeartResponseM2C, MasterAuthorizedInfo, RegisterResponseM2C
from mqbridge.tubemq.wire.rpc import OP_REGISTER, OP_UNREGISTER
from tests.patience import PATIENCE_S
from tests.tubemq.client.fakes import MasterScript, Script, committed, pack, registered, unregistered

HELD = "#1:10.0.0.5:8123#demo:"


def joined(code: int = 200) -> RegisterResponseM2C:
    return RegisterResponseM2C(success=code == 200, errCode=code, errMsg="scripted refusal", notAllocated=True)


def beat(event: EventProto | None = None, code: int = 200) -> HeartResponseM2C:
    token = MasterAuthorizedInfo(visitAuthorizedToken=5)
    return HeartResponseM2C(success=code == 200, errCode=code, errMsg="scripted refusal", event=event, authorizedInfo=token)


def event(kind: int, *partitions: int, number: int = 9) -> EventProto:
    return EventProto(rebalanceId=number, opType=kind, subscribeInfo=[f"c@g1{HELD}{p}" for p in partitions])


class Environment:
    """A consumer between a scripted Master and a scripted Broker.

    Heartbeats to the Broker are rare by default, because they would take responses that are meant for other requests.
    """

    def __init__(self, *, broker_heartbeat_s: float = 3600.0, **settings: Any) -> None:
        self.master, self.broker = MasterScript(), Script()
        self.master.connections = self.broker
        self.consumer = PackConsumer(self.master, "g1", ["demo"], heartbeat_s=0.01, **settings)  # type: ignore[arg-type]
        self.consumer.held_partitions.heartbeats.interval_s = broker_heartbeat_s

    async def run_script(self, *responses: Any) -> None:
        """Let the Master give these responses, and wait for the first request after the last of them."""
        self.master.respond_with(*responses)
        await self.consumer.start()
        await asyncio.wait_for(self.master.silent.wait(), PATIENCE_S)

    def reports(self) -> list[list[str]]:
        """Return the partitions in each heartbeat that reported the held ones."""
        requests = [request for request in self.master.requests if hasattr(request, "reportSubscribeInfo")]
        return [[info.split(HELD)[1] for info in request.subscribeInfo] for request in requests if request.reportSubscribeInfo]


@pytest_asyncio.fixture
async def new_environment() -> AsyncIterator[Any]:
    environments: list[Environment] = []

    def make(**settings: Any) -> Environment:
        environments.append(Environment(**settings))
        return environments[-1]

    yield make
    for environment in environments:
        environment.master.silent.clear()
        environment.master.respond_with(*[beat()] * 3)
        environment.broker.respond_with(*[unregistered()] * 8)
        await cancel(*environment.consumer._tasks, *environment.consumer.held_partitions._tasks)


@pytest.mark.parametrize("kind", [1, 10])
async def test_a_connect_event_registers_reports_and_assigns_partitions(new_environment: Any, kind: int) -> None:
    environment = new_environment(start=StartOffset.LATEST, filters={"demo": {"t2", "t1"}})
    environment.broker.respond_with(registered(), registered())
    await environment.run_script(joined(), beat(event(kind, 0, 3)), beat())
    assert list(environment.master.requests[0].topicCondition) == ["demo#t1,t2"]
    assert [(r.partitionId, r.readStatus, list(r.filterCondStr)) for r in environment.broker.requests[:2]] == [
        (0, 1, ["t1", "t2"]),
        (3, 1, ["t1", "t2"]),
    ]
    echo = next(request for request in environment.master.requests[1:] if request.HasField("event"))
    assert (echo.event.status, echo.event.rebalanceId, echo.event.opType) == (EVENT_DONE, 9, kind)
    assert sorted(environment.reports()[0]) == ["0", "3"]
    assignments = environment.consumer.assignments()
    assert {(await anext(assignments)).ref.partition for _ in range(2)} == {0, 3}


async def test_an_occupied_partition_is_not_reported_as_held(new_environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.tubemq.client.consumer.partition_registration.OCCUPIED_RETRY_S", 0.0)
    environment = new_environment()
    occupied = unregistered()
    occupied.success, occupied.errCode = False, 410
    environment.broker.respond_with(occupied, occupied)
    await environment.run_script(joined(), beat(event(1, 0)), beat())
    assert environment.reports()[0] == []
    assert not environment.consumer.held_partitions.held


@pytest.mark.parametrize("is_lost", [False, True], ids=["given back", "lost"])
async def test_a_partition_gets_a_new_client_id_while_an_old_get_may_still_arrive(new_environment: Any, is_lost: bool) -> None:
    """An unanswered get may still arrive, and would confirm a later pack of the same client id."""
    environment = new_environment()
    environment.broker.respond_with(registered())
    await environment.run_script(joined(), beat(event(1, 0)), beat())
    held = await anext(environment.consumer.assignments())
    asked, lost = asyncio.Event(), asyncio.Event()

    async def late() -> Exception:
        asked.set()
        await lost.wait()
        return ConnectionLost("a get")

    environment.broker.respond_with(late)
    fetching = asyncio.ensure_future(held.fetch())
    await asked.wait()
    if is_lost:
        held.on_heartbeat_failure(412, held.state.generation)
    else:
        environment.broker.respond_with(unregistered())
        await held.release()
    environment.broker.respond_with(registered())
    again = await environment.consumer.held_partitions.acquire(held.ref)
    assert again.client_id != environment.consumer.membership.client_id
    lost.set()
    with pytest.raises(LaneRevoked):
        await fetching


async def test_closing_ends_at_its_deadline_while_a_registration_has_no_response(new_environment: Any) -> None:
    environment = new_environment()
    asked = asyncio.Event()

    async def silent() -> Exception:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    environment.broker.respond_with(silent, silent)
    environment.master.respond_with(joined(), beat(event(1, 0)))
    await environment.consumer.start()
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        await environment.consumer.close(0.05)
    assert not environment.consumer.held_partitions.held


async def test_a_fenced_partition_is_acquired_again_under_a_new_client_id(new_environment: Any) -> None:
    """Abandoned requests with the member's own id may still arrive."""
    environment = new_environment()
    environment.broker.respond_with(registered())
    await environment.run_script(joined(), beat(event(1, 0)), beat())
    held = await anext(environment.consumer.assignments())
    environment.broker.respond_with(ConnectionLost("a get"), unregistered(), registered(), pack(0))
    await held.fetch()
    held.confirm()
    environment.broker.respond_with(committed(56), unregistered(), registered())
    await held.release()
    again = await environment.consumer.held_partitions.acquire(held.ref)
    own = environment.consumer.membership.client_id
    assert [request.clientId for request in environment.broker.requests if getattr(request, "opType", None) == OP_REGISTER] == [
        own,
        f"{own}-run1",
        again.client_id,
    ]
    assert again.client_id not in (own, f"{own}-run1")


async def test_an_event_is_handled_although_the_flow_control_rules_beside_it_are_invalid(new_environment: Any) -> None:
    """The Master sends an event once, and repeats rules only until the client reports their id."""
    environment = new_environment()
    environment.broker.respond_with(registered())
    answer = beat(event(10, 0))
    answer.defFlowCheckId, answer.defFlowControlInfo = 5, '[{"type":0,"rule":[{"start":"08:00","freqInMs":"soon"}]}]'
    await environment.run_script(joined(), answer, beat())
    assert environment.reports()[0] == ["0"]
    assert environment.master.requests[-1].defFlowCheckId == 5
    assert len(environment.consumer.held_partitions.held) == 1


@pytest.mark.parametrize("kind", [2, 20])
async def test_a_disconnect_event_releases_partitions_and_reports_the_others(new_environment: Any, kind: int) -> None:
    environment = new_environment()
    environment.broker.respond_with(registered(), registered(), unregistered())
    await environment.run_script(joined(), beat(event(1, 0, 1)), beat(event(kind, 1, 5, number=10)), beat())
    assert environment.broker.requests[2].partitionId == 1
    assert sorted(environment.reports()[0]) == ["0", "1"]
    assert environment.reports()[1] == ["0"]


async def test_an_event_in_the_response_to_an_echo_is_handled(new_environment: Any) -> None:
    environment = new_environment()
    environment.broker.respond_with(registered(), registered())
    await environment.run_script(joined(), beat(event(1, 0)), beat(event(1, 1, number=11)), beat())
    echoes = [request.event.rebalanceId for request in environment.master.requests[1:] if request.HasField("event")]
    assert echoes == [9, 11]


async def test_start_offset_latest_applies_only_to_the_first_assignment_of_a_partition(new_environment: Any) -> None:
    """Otherwise messages that arrive between two assignments would be skipped."""
    environment = new_environment(start=StartOffset.LATEST)
    environment.broker.respond_with(registered(), unregistered(), registered())
    steps = [event(1, 0), event(2, 0, number=10), event(1, 0, number=11)]
    await environment.run_script(joined(), *(beat(step) for step in steps), beat())
    operations = [(request.opType, request.readStatus) for request in environment.broker.requests if hasattr(request, "opType")]
    assert operations == [(OP_REGISTER, 1), (OP_UNREGISTER, 1), (OP_REGISTER, 0)]


async def test_rejoining_at_a_master_that_forgot_the_member_reports_its_partitions(new_environment: Any) -> None:
    environment = new_environment()
    environment.broker.respond_with(registered())
    await environment.run_script(joined(), beat(event(1, 2)), beat(), beat(code=411), joined(), beat())
    again = [request for request in environment.master.requests if hasattr(request, "topicList")][1]
    assert [info.split(HELD)[1] for info in again.subscribeInfo] == ["2"]
    assert len(environment.consumer.held_partitions.held) == 1


async def test_rejoining_waits_for_a_master_to_know_the_topic(new_environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Master that has just started knows no topic until the Brokers report theirs."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    environment = new_environment()
    await environment.run_script(joined(), beat(code=411), joined(431), beat(code=411), joined(), beat())
    assert environment.consumer._permanent_error is None


async def test_a_fatal_refusal_to_rejoin_ends_the_assignments(new_environment: Any) -> None:
    environment = new_environment()
    environment.master.respond_with(joined(), beat(code=411), joined(425))
    await environment.consumer.start()
    with pytest.raises(ServerRefused, match="have other topics"):
        await asyncio.wait_for(anext(environment.consumer.assignments()), PATIENCE_S)


@pytest.mark.parametrize("code", [431, 450])
async def test_a_fatal_refusal_to_join_is_raised_at_once(new_environment: Any, code: int) -> None:
    environment = new_environment()
    environment.master.respond_with(joined(code))
    with pytest.raises(ServerRefused, match="demo") as caught:
        await environment.consumer.start()
    assert caught.value.code == code


async def test_every_sixth_heartbeat_reports_the_held_partitions(new_environment: Any) -> None:
    environment = new_environment()
    await environment.run_script(joined(), *[beat()] * 12)
    flags = [request.reportSubscribeInfo for request in environment.master.requests[1:]]
    assert flags[:12] == [False] * 5 + [True] + [False] * 5 + [True]


async def test_a_broker_heartbeat_reports_lost_and_unregistered_partitions(new_environment: Any) -> None:
    environment = new_environment(broker_heartbeat_s=0.01)
    environment.broker.respond_with(registered(), registered())
    environment.broker.respond_with(
        HeartBeatResponseB2C(
            success=True, errCode=200, errMsg="", hasPartFailure=True, failureInfo=[f"412:{HELD[1:]}0", f"411:{HELD[1:]}1"]
        )
    )
    await environment.run_script(joined(), beat(event(1, 0, 1)), beat())
    async with asyncio.timeout(PATIENCE_S):
        while len(environment.consumer.held_partitions.held) > 1:
            await asyncio.sleep(0.01)
    ((key, left),) = environment.consumer.held_partitions.held.items()
    assert key == (1, "demo", 1)
    assert not left.state.is_registered
    assert environment.broker.requests[2].authInfo.visitAuthorizedToken == 5
