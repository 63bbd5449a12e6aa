"""Several Masters: each is tried once per call, and the one that answered stays."""

from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, Unreachable
from mqbridge.tubemq.client import master as module
from mqbridge.tubemq.client.master import Masters, client_id, retried
from mqbridge.tubemq.wire.pb.master_pb2 import CloseRequestC2M, CloseResponseM2C
from mqbridge.tubemq.wire.rpc import CONSUMER_CLOSE, RemoteError, Standby
from tests.tubemq.client.fakes import Script

REQUEST = CloseRequestC2M(clientId="c", groupName="g")
GOOD = CloseResponseM2C(success=True, errCode=200, errMsg="OK")


class Addresses:
    def __init__(self, *scripts: Script) -> None:
        self.scripts = {("m", port): script for port, script in enumerate(scripts)}

    def to(self, host: str, port: int) -> Any:
        return self.scripts[host, port]


def masters(*scripts: Script) -> Masters:
    sessions = Addresses(*scripts)
    return Masters(list(sessions.scripts), sessions)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [Standby("StandbyException", "not me", 1), ConnectionLost("x"), Unreachable("x"), RequestTimeout("x")],
    ids=lambda error: type(error).__name__,
)
async def test_the_next_master_is_asked_and_kept(error: Exception) -> None:
    first, second = Script(error), Script(GOOD, GOOD)
    group = masters(first, second)
    for _ in range(2):
        assert await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C) == GOOD
    assert (len(first.asked), len(second.asked)) == (1, 2)


async def test_each_is_asked_once_per_call() -> None:
    scripts = Script(Unreachable("first gone"), GOOD), Script(Standby("StandbyException", "second stands by", 1))
    group = masters(*scripts)
    with pytest.raises(Unreachable, match=r"first gone.*second stands by"):
        await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C)
    assert [len(script.asked) for script in scripts] == [1, 1]
    assert await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C) == GOOD


async def test_what_the_active_one_throws_is_raised() -> None:
    second = Script(GOOD)
    group = masters(Script(RemoteError("java.lang.Exception", "broken", 1)), second)
    with pytest.raises(RemoteError, match="broken"):
        await group.call(CONSUMER_CLOSE, REQUEST, CloseResponseM2C)
    assert not second.asked


@pytest.mark.parametrize(("failure", "tries"), [(Failure.RETRY, 5), (Failure.FATAL, 1)])
async def test_registrations_are_tried_five_times(monkeypatch: pytest.MonkeyPatch, failure: Failure, tries: int) -> None:
    monkeypatch.setattr(module, "REGISTER_PAUSE_S", 0.0)
    made = []

    async def attempt() -> None:
        made.append(1)
        raise ClusterError("no", failure)

    with pytest.raises(ClusterError):
        await retried("this", attempt)
    assert len(made) == tries


def test_client_ids_can_stand_in_subscriptions() -> None:
    ids = {client_id("10.0.0.9", "g1") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(not set("@#") & set(found) and found.startswith("g1_10.0.0.9-") for found in ids)
