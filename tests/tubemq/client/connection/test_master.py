"""Several Masters: each is tried once per call, and the one that responded is used next."""

import asyncio
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, Unreachable
from mqbridge.tubemq.client.connection import master as module
from mqbridge.tubemq.client.connection.master import Masters, call_with_retries, new_client_id
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo
from mqbridge.tubemq.wire.pb.master_pb2 import CloseRequestC2M, CloseResponseM2C, MasterAuthorizedInfo, MasterCertificateInfo
from mqbridge.tubemq.wire.rpc import CONSUMER_CLOSE, RemoteError, StandbyError
from tests.patience import PATIENCE_S
from tests.tubemq.client.fakes import Script
from tests.tubemq.client.model import BROKER, Model, ModelConnection
from tests.tubemq.client.quick import shorten_pauses

REQUEST = CloseRequestC2M(clientId="c", groupName="g")
GOOD = CloseResponseM2C(success=True, errCode=200, errMsg="OK")


class Addresses:
    """Connections to several scripted Masters."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = {("m", port): script for port, script in enumerate(scripts)}

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return self.scripts[host, port]


def masters(*scripts: Script) -> Masters:
    connections = Addresses(*scripts)
    return Masters(list(connections.scripts), connections)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [StandbyError("StandbyException", "not me", 1), ConnectionLost("x"), Unreachable("x"), RequestTimeout("x")],
    ids=lambda error: type(error).__name__,
)
async def test_the_next_master_is_asked_and_used_from_then_on(error: Exception) -> None:
    first, second = Script(error), Script(GOOD, GOOD)
    group = masters(first, second)
    for _ in range(2):
        assert await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C) == GOOD
    assert (len(first.requests), len(second.requests)) == (1, 2)


async def test_each_master_is_asked_once_per_call() -> None:
    scripts = Script(Unreachable("first gone"), GOOD), Script(StandbyError("StandbyException", "second stands by", 1))
    group = masters(*scripts)
    with pytest.raises(Unreachable, match=r"first gone.*second stands by"):
        await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C)
    assert [len(script.requests) for script in scripts] == [1, 1]
    assert await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C) == GOOD


@pytest.mark.parametrize(
    ("failures", "combined"),
    [
        ((Failure.FATAL,), Failure.FATAL),
        ((Failure.FATAL, Failure.FATAL), Failure.FATAL),
        ((Failure.FATAL, Failure.RETRY), Failure.RETRY),
    ],
)
async def test_a_call_is_fatal_only_if_all_masters_refuse_permanently(failures: tuple[Failure, ...], combined: Failure) -> None:
    """As with a certificate that no Master accepts; a Master that is only unreachable may accept it later."""
    group = masters(*(Script(Unreachable("no", failure)) for failure in failures))
    with pytest.raises(Unreachable) as refused:
        await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C)
    assert refused.value.failure is combined


@pytest.mark.parametrize("calls", [2, 3, 4])
async def test_concurrent_calls_do_not_skip_the_active_master(calls: int) -> None:
    """Each call finds the first Master unreachable; all calls then use the second."""

    async def gone() -> Exception:
        await asyncio.sleep(0)  # by now all calls have asked
        return Unreachable("gone")

    first, second, third = Script(*[gone] * calls), Script(*[GOOD] * 2 * calls), Script(*[Unreachable("gone too")] * calls)
    group = masters(first, second, third)
    for _ in range(2):
        found = await asyncio.gather(*(group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C) for _ in range(calls)))
        assert found == [GOOD] * calls
    assert [len(script.requests) for script in (first, second, third)] == [calls, 2 * calls, 0]


async def test_an_exception_of_the_active_master_is_raised() -> None:
    second = Script(GOOD)
    group = masters(Script(RemoteError("java.lang.Exception", "broken", 1)), second)
    with pytest.raises(RemoteError, match="broken"):
        await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C)
    assert not second.requests


@pytest.mark.parametrize(("failure", "tries"), [(Failure.RETRY, 5), (Failure.FATAL, 1)])
async def test_registrations_are_tried_five_times(monkeypatch: pytest.MonkeyPatch, failure: Failure, tries: int) -> None:
    monkeypatch.setattr(module, "REGISTER_PAUSE_S", 0.0)
    attempts = []

    async def attempt() -> None:
        attempts.append(1)
        raise ClusterError("no", failure)

    with pytest.raises(ClusterError):
        await call_with_retries("this", attempt)
    assert len(attempts) == tries


async def test_tokens_of_responses_are_sent_with_later_requests() -> None:
    group = masters(Script())
    assert await group.auth_info() is None
    assert group.broker_auth == AuthorizedInfo(visitAuthorizedToken=-2)
    group.store_tokens(MasterAuthorizedInfo(visitAuthorizedToken=5))
    assert (group.broker_auth.visitAuthorizedToken, await group.auth_info()) == (5, None)
    group.store_tokens(MasterAuthorizedInfo(visitAuthorizedToken=6, authAuthorizedToken="abc"))
    group.store_tokens(MasterAuthorizedInfo(visitAuthorizedToken=7))
    assert group.broker_auth == AuthorizedInfo(visitAuthorizedToken=7, authAuthorizedToken="abc")
    assert await group.auth_info() == MasterCertificateInfo(authorizedToken="abc")


@pytest.mark.parametrize("how", ["stands by", "is gone", "is silent"])
async def test_a_group_continues_when_the_active_master_changes(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The active one of two Masters falls silent, becomes standby or closes its connections, twice."""
    shorten_pauses(monkeypatch)
    model = Model({"demo": 2})
    addresses = [("10.0.0.1", 8715), ("10.0.0.2", 8715)]
    leading = 0
    original = model.answer

    class TwoMasters(ModelConnection):
        """A connection to the Broker or a Master; requests to the Master that does not lead fail."""

        def post(self, service: int, method: int, body: bytes, on_answer: Any) -> None:
            is_other = (self.host, self.port) in addresses and (self.host, self.port) != addresses[leading]
            errors = {
                "stands by": StandbyError("StandbyException", "not me", 1),
                "is gone": ConnectionLost("gone"),
                "is silent": RequestTimeout("silent"),
            }
            model.answer = (lambda *_: errors[how]) if is_other else original  # type: ignore[method-assign]
            super().post(service, method, body, on_answer)

    for host, port in [*addresses, (BROKER.host, BROKER.port)]:
        model.connections[host, port] = TwoMasters(model, host, port)
    member = PackConsumer(Masters(addresses, model), "g", ["demo"], heartbeat_s=0.003)  # type: ignore[arg-type]
    await member.start()
    assignments = member.assignments()
    held = [await asyncio.wait_for(anext(assignments), PATIENCE_S) for _ in range(2)]
    for leading in (1, 0):
        before = member.held_partitions.master_seen_at
        async with asyncio.timeout(PATIENCE_S):
            while member.held_partitions.master_seen_at == before or member.membership.masters._current != leading:
                await asyncio.sleep(0.003)
    assert len(member.held_partitions.held) == len(held) == 2
    await member.close()


def test_client_ids_are_unique_and_contain_no_separator() -> None:
    ids = {new_client_id("10.0.0.9", "g1") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(not set("@#") & set(found) and found.startswith("g1_10.0.0.9-") for found in ids)


@pytest.mark.parametrize(
    ("group", "name", "begin"),
    [
        ("g1", "orders-1", "g1_orders-1_10.0.0.9-"),
        ("g@#1", "a_b c%é", "g--1_a_b-c--_10.0.0.9-"),
        ("g" * 1024, "n" * 1024, "g" * 600 + "_" + "n" * 200 + "_10.0.0.9-"),
        ("", "ignored", "10.0.0.9-"),
    ],
)
def test_a_client_id_shows_the_names_of_group_and_member(group: str, name: str, begin: str) -> None:
    found = new_client_id("10.0.0.9", group, name)
    assert found.startswith(begin)
    assert len(found) < 1024
