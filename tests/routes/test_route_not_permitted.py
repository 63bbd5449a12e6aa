"""What an administrator takes back and gives again stops no route: permissions, limits, closed topics. Other routes go on."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, Failure, NotPermitted, TopicTerminated
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Share
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.inbound import MemoryInbound
from mqbridge.testing.memory.adapter.outbound import MemoryOutbound
from tests.gateway.world import ADAPTERS, World, committed, end, everything, fill, named, put, route, running, until
from tests.kit.process import free_ports
from tests.patience import PATIENCE_S

COUNT = 20
ALL = list(range(COUNT))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.routes.route.MIN_REJOIN_PAUSE_S", 0.01)
    monkeypatch.setattr("mqbridge.routes.route.MAX_REJOIN_PAUSE_S", 0.05)


def denied(problem: str) -> NotPermitted:
    return NotPermitted(problem, 16, Failure.FATAL)


class Denials:
    """Operations of every memory cluster that are not permitted, by name: `describe`, `inbound`, `check_outbound`, …"""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now: dict[str, Exception] = {}
        self._patch = patch

    def can_deny(self, operation: str, cluster: str, topic: str) -> None:
        """Let `now[operation]` be raised by this operation of a cluster, if it is about the topic."""
        original = getattr(MemoryCluster, operation)

        async def wrapped(memory: MemoryCluster, subject: Any, *more: Any) -> Any:
            topics = subject if isinstance(subject, str) else getattr(subject, "topics", getattr(subject, "topic", ""))
            if operation in self.now and memory.name == cluster and topic in topics:
                raise self.now[operation]
            return await original(memory, subject, *more)

        self._patch.setattr(MemoryCluster, operation, wrapped)


@pytest.fixture
def denials(monkeypatch: pytest.MonkeyPatch) -> Denials:
    return Denials(monkeypatch)


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING" and text in record.getMessage()]


@pytest.mark.parametrize("error", [denied("no rights"), ClusterError("no rights", Failure.FATAL)], ids=["denied", "fatal"])
async def test_a_group_that_may_not_read_for_a_while_is_joined_again(
    world: World, denials: Denials, caplog: pytest.LogCaptureFixture, error: ClusterError
) -> None:
    fill(world.a, "t", 3, COUNT)
    denials.can_deny("inbound", "a", "t")
    async with running(world.config(route("r", "a/t", "b/t"), route("other", "a/t", "b/other"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == COUNT)
        denials.now["inbound"] = error
        world.a.fail("g-r", error)
        denied_route = named(gateway, "r")
        await until(lambda: str(denied_route.state.retry_reason) == "no rights")
        put(world.a, "t", 1, b"%d" % COUNT)
        await until(lambda: everything(world.b, "other") == [*ALL, COUNT])
        await until(lambda: denied_route.state.memberships > 4)
        assert everything(world.b, "t") == ALL
        assert denied_route.state.error is None
        denials.now.clear()
        await until(lambda: everything(world.b, "t") == [*ALL, COUNT])
        assert denied_route.state.retry_reason is None
    assert len(warnings(caplog, "no rights")) == 1


async def test_a_target_that_refuses_everything_for_a_while_gets_it_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    fill(world.a, "t", 2, COUNT)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == COUNT)
        world.b.faults.fatal = "the topic is read-only"
        put(world.a, "t", 1, b"%d" % COUNT)
        found = named(gateway, "r")
        await until(lambda: found.state.memberships > 3)
        assert (found.state.error, everything(world.b, "t")) == (None, ALL)
        world.b.faults.fatal = None
        await until(lambda: everything(world.b, "t") == [*ALL, COUNT])
    assert len(warnings(caplog, "the topic is read-only")) == 1


async def test_a_deleted_target_without_create_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world.a, "t", 2, COUNT)
    world.b.create("t", 2)
    async with running(world.config(route("r", "a/t", end("b/t", create=False)))) as gateway:
        await until(lambda: committed(world.a, "g-r") == COUNT)
        world.b.faults.fatal = "no server knows the topic"  # an error that only says that a person must do something
        del world.b.topics["t"]
        put(world.a, "t", 1, b"%d" % COUNT)
        await until(lambda: "does not exist and cannot be created" in str(named(gateway, "r").state.retry_reason))
        world.b.faults.fatal = None
        world.b.create("t", 2)
        await until(lambda: everything(world.b, "t") == [COUNT])


async def test_a_terminated_target_ends_only_its_route(world: World) -> None:
    fill(world.a, "t", 3, COUNT)
    async with running(world.config(route("r", "a/t", "b/t"), route("other", "a/t", "b/other"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == COUNT)
        world.a.fail("g-r", TopicTerminated("the topic was terminated", 15, Failure.FATAL))
        await until(lambda: named(gateway, "r").state.error is not None)
        put(world.a, "t", 1, b"%d" % COUNT)
        await until(lambda: everything(world.b, "other") == [*ALL, COUNT])


@pytest.mark.parametrize(
    ("operation", "cluster"),
    [("describe", "a"), ("check_inbound", "a"), ("inbound", "a"), ("describe", "b"), ("check_outbound", "b"), ("outbound", "b")],
)
async def test_what_is_not_permitted_at_the_start_is_waited_for(
    world: World, denials: Denials, caplog: pytest.LogCaptureFixture, operation: str, cluster: str
) -> None:
    fill(world.a, "t", 2, COUNT)
    fill(world.c, "u", 1, COUNT)
    world.b.create("t", 2)
    denials.can_deny(operation, cluster, "t")
    denials.now[operation] = denied("role 'app' may not do it")
    async with running(world.config(route("r", "a/t", "b/t"), route("other", "c/u", "c/v"))) as gateway:
        await until(lambda: everything(world.c, "v") == ALL)
        waiting = named(gateway, "r")
        await until(lambda: waiting._rejoin_backoff.has_failed)
        assert "role 'app' may not do it" in str(waiting.state.retry_reason)
        assert waiting.state.error is None
        denials.now.clear()
        await until(lambda: everything(world.b, "t") == ALL)
        assert waiting.state.retry_reason is None
    assert len(warnings(caplog, "role 'app' may not do it")) == 1


async def test_several_things_that_are_not_permitted_are_waited_for(world: World, denials: Denials) -> None:
    fill(world.a, "t", 2, COUNT)
    for cluster in (world.b, world.c):
        cluster.create("t", 2)
    for cluster in "bc":
        denials.can_deny("check_outbound", cluster, "t")
    denials.now["check_outbound"] = denied("may not be written")
    async with running(world.config(route("r", "a/t", "b/t", "c/t"))) as gateway:
        waiting = named(gateway, "r")
        await until(lambda: waiting._rejoin_backoff.has_failed)
        assert str(waiting.state.retry_reason).count("may not be written") == 2
        denials.now.clear()
        await until(lambda: everything(world.b, "t") == everything(world.c, "t") == ALL)


@pytest.mark.parametrize("how", [{"fail_fast": True}, {"until_idle_s": 0.1}], ids=["fail fast", "until idle"])
async def test_a_job_does_not_wait_for_a_permission(world: World, denials: Denials, how: dict[str, Any]) -> None:
    fill(world.a, "t", 2, COUNT)
    world.b.create("t", 2)
    denials.can_deny("check_outbound", "b", "t")
    denials.now["check_outbound"] = denied("may not be written")
    with pytest.raises(ClusterError, match="may not be written"):
        await run_gateway(world.config(route("r", "a/t", "b/t")), **how)


@pytest.mark.parametrize("how", [{"fail_fast": True}, {"until_idle_s": 0.1}], ids=["fail fast", "until idle"])
async def test_a_job_ends_if_its_permission_is_taken_away(world: World, how: dict[str, Any]) -> None:
    fill(world.a, "t", 2, COUNT)
    world.b.faults.fatal = "the topic is read-only"
    result = await run_gateway(world.config(route("r", "a/t", "b/t")), **how)
    assert result.has_stopped


@pytest.mark.parametrize("how", [{"fail_fast": True}, {"until_idle_s": 0.1}], ids=["fail fast", "until idle"])
async def test_a_job_ends_if_its_target_refuses_single_sends_for_good(
    world: World, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """As RocketMQ and TubeMQ do: the receipt has the failure of each message."""
    fill(world.a, "t", 2, COUNT)

    def refuse(self: MemoryOutbound, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        failures = [MessageFailure(index, Failure.FATAL, "no permission") for index in range(share.count)]
        asyncio.get_running_loop().call_soon(future.set_result, Receipt([()] * share.count, failures))
        return future

    monkeypatch.setattr(MemoryOutbound, "send", refuse)
    result = await run_gateway(world.config(route("r", "a/t", "b/t")), **how)
    assert result.has_stopped


@pytest.mark.parametrize("how", [{"fail_fast": True}, {"until_idle_s": PATIENCE_S}], ids=["fail fast", "until idle"])
async def test_a_job_does_not_wait_for_a_deleted_target(world: World, how: dict[str, Any]) -> None:
    world.b.create("t", 2)
    fill(world.a, "t", 2, COUNT)
    job = asyncio.ensure_future(run_gateway(world.config(route("r", "a/t", end("b/t", create=False))), **how))
    await until(lambda: committed(world.a, "g-r") == COUNT)
    del world.b.topics["t"]
    put(world.a, "t", 1, b"%d" % COUNT)
    assert (await job).has_stopped


async def run_gateway(config: dict[str, Any], fail_fast: bool | None = None, until_idle_s: float | None = None) -> RunResult:
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS, fail_fast=fail_fast)
    return await asyncio.wait_for(gateway.run(until_idle_s), PATIENCE_S)


async def test_a_topic_of_a_pattern_without_permission_fails_alone_and_is_read_later(world: World, denials: Denials) -> None:
    for topic in ("t1", "t2"):
        fill(world.a, topic, 1, COUNT)
    denials.can_deny("describe", "a", "t2")
    denials.now["describe"] = denied("may not look up")
    config = world.config(route("r", "a/~t.", "b/{topic}", source_={"refresh": "100ms"}))
    config["routes"][0]["from"]["topic"] = "~(?P<topic>t.)"
    async with running(config) as gateway:
        await until(lambda: everything(world.b, "t1") == ALL)
        assert named(gateway, "r").state.failed_topics == {"a/t2": "may not look up"}
        denials.now.clear()
        await until(lambda: everything(world.b, "t2") == ALL)
        assert not named(gateway, "r").state.failed_topics


async def test_a_pattern_of_which_nothing_is_permitted_is_waited_for(world: World, denials: Denials) -> None:
    fill(world.a, "t1", 1, COUNT)
    denials.can_deny("describe", "a", "t1")
    denials.now["describe"] = denied("may not look up")
    config = world.config(route("r", "a/~t.", "b/{topic}", source_={"refresh": "100ms"}))
    config["routes"][0]["from"]["topic"] = "~(?P<topic>t.)"
    async with running(config) as gateway:
        await until(lambda: named(gateway, "r")._rejoin_backoff.has_failed)
        denials.now.clear()
        await until(lambda: everything(world.b, "t1") == ALL)


async def test_a_refused_pattern_topic_does_not_stop_the_others_while_they_run(world: World, denials: Denials) -> None:
    """The permission for one of two topics is taken away while the route runs: the other one is read on."""
    for topic in ("t1", "t2"):
        fill(world.a, topic, 1, COUNT)
    denials.can_deny("inbound", "a", "t2")
    denials.can_deny("check_inbound", "a", "t2")
    config = world.config(route("r", "a/~t.", "b/{topic}", source_={"refresh": "100ms"}))
    config["routes"][0]["from"]["topic"] = "~(?P<topic>t.)"
    async with running(config) as gateway:
        await until(lambda: everything(world.b, "t1") == everything(world.b, "t2") == ALL)
        denials.now["inbound"] = denials.now["check_inbound"] = denied("may not consume t2")
        world.a.fail("g-r", denied("may not consume t2"))
        put(world.a, "t1", 0, b"%d" % COUNT)
        await until(lambda: named(gateway, "r").state.failed_topics == {"a/t2": "may not consume t2"})
        await until(lambda: everything(world.b, "t1") == [*ALL, COUNT])
        denials.now.clear()
        put(world.a, "t2", 0, b"%d" % COUNT)
        await until(lambda: everything(world.b, "t2") == [*ALL, COUNT])


@pytest.mark.parametrize("optional", [False, True])
async def test_a_source_that_may_not_be_read_now_is_shown(world: World, monkeypatch: pytest.MonkeyPatch, optional: bool) -> None:
    fill(world.a, "t", 2, COUNT)
    pauses: Mapping[str, str] = {"t/0": "the group is paused"}
    monkeypatch.setattr(MemoryInbound, "pauses", property(lambda _: pauses), raising=False)
    (port,) = free_ports(1)
    http = {"listen": f"127.0.0.1:{port}", "ready_without": ["a"] if optional else []}
    config = world.config(route("r", "a/t", "b/t")) | {"http": http}
    async with running(config, alone=False), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await until(lambda: everything(world.b, "t") == ALL)
        ready = await client.get("/health/ready")
        assert ready.json()["paused"] == {"r a/t/0": "the group is paused"}
        assert ready.status_code == (200 if optional else 503)
        assert (await client.get("/routes")).json()[0]["paused"] == {"a/t/0": "the group is paused"}
        assert 'mqbridge_paused_sources{route="r"} 1.0' in (await client.get("/metrics")).text
        pauses = {}
        assert (await client.get("/health/ready")).status_code == 200
