"""A target that is full or refuses everything names its cause; what of it makes a gateway not ready can be chosen."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from mqbridge.adapter.outbound import SendFailure
from mqbridge.config.load import from_dict
from mqbridge.errors import ConfigError
from mqbridge.gateway import health
from mqbridge.gateway import report as gateway_report
from mqbridge.gateway.reload_permission import why_not_permitted
from mqbridge.net.secret import Secret
from tests.gateway.world import ADAPTERS, World, end, everything, fill, put, route, running, until

FOREVER = 1_000_000_000
FULL = "the disk of the broker is full"


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_report, "FAILING_CHECK_S", 0.01)
    monkeypatch.setattr(gateway_report, "FAILING_LOG_S", 0.05)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        yield client


def config(world: World, client: httpx.AsyncClient, *routes: dict[str, Any], **http: Any) -> dict[str, Any]:
    return world.config(*routes, http={"listen": f"{client.base_url.host}:{client.base_url.port}"} | http)


async def test_a_full_target_names_its_cause_everywhere_and_its_end_is_logged(
    world: World, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "mqbridge.gateway")
    monkeypatch.setattr(health, "STUCK_S", 0.05)
    fill(world.a, "t", 1, 10)
    world.b.faults.transient_error, world.b.faults.transient = FULL, FOREVER
    letters = {"dead_letter": end("c/dead")}
    async with running(config(world, client, route("r", "a/t", "b/copy", "c/copy", delivery=letters)), alone=False):
        await until(lambda: "sends to target b/copy" in caplog.text)
        ready = await client.get("/health/ready")
        assert ready.status_code == 503
        assert list(ready.json()["failing"]) == ["r b/copy"]
        assert FULL in ready.json()["failing"]["r b/copy"]
        assert FULL in ready.json()["stuck"]["r b/copy"]
        (shown,) = (await client.get("/routes")).json()
        assert list(shown["failing"]) == ["b/copy"]
        page = (await client.get("/metrics")).text
        assert 'mqbridge_target_failing_seconds{route="r",target="b/copy"}' in page
        assert 'mqbridge_target_failing_seconds{route="r",target="c/copy"}' not in page
        world.b.faults.transient = 0
        await until(lambda: everything(world.b, "copy") == list(range(10)))
        await until(lambda: "target b/copy stores messages again after" in caplog.text)
        assert (await client.get("/health/ready")).json()["failing"] == {}
        warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert len(warned) == 1
        assert warned[0].endswith(f"are retried; nothing is lost: {FULL}")


async def test_an_outage_is_logged_by_its_cluster_alone(
    world: World, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 1, 10)
    async with running(config(world, client, route("r", "a/t", "b/copy")), alone=False) as gateway:
        await until(lambda: everything(world.b, "copy") == list(range(10)))
        world.b.disconnect()
        put(world.a, "t", 0, b"10")
        await until(lambda: gateway.routes[0].state.send_failures)
        assert list((await client.get("/routes")).json()[0]["failing"]) == ["b/copy"]
        world.b.reconnect()
        await until(lambda: everything(world.b, "copy") == list(range(11)))
    assert "sends to target" not in caplog.text


async def test_sends_that_still_fail_right_after_an_outage_are_not_reported(
    world: World, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster can be reached again a moment before it stores messages: the time of the outage does not count."""
    monkeypatch.setattr(gateway_report, "FAILING_LOG_S", 60.0)
    times = iter(range(0, 10**6, 50))  # each check comes 50 s after the one before
    is_away = iter([True, True, False])
    monkeypatch.setattr(gateway_report, "_is_away", lambda *_: next(is_away, False))
    gateway: Any = SimpleNamespace(routes=[SimpleNamespace(name="r", state=SimpleNamespace())], clusters={})
    gateway.routes[0].state.send_failures = {"b/copy": SendFailure(0.0, "no route", 1)}
    watch = gateway_report.FailingTargets()
    for _ in range(3):  # away at 0 s and 50 s, reachable at 100 s
        watch.check(gateway, next(times))
    assert "sends to target" not in caplog.text
    for _ in range(2):  # it still fails at 150 s and at 200 s
        watch.check(gateway, next(times))
    assert "have failed for 150 s" in caplog.text


async def test_troubles_of_optional_clusters_do_not_make_the_gateway_unready(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STUCK_S", 0.05)
    fill(world.a, "t", 1, 10)
    routes = route("r", "a/t", "b/copy"), route("local", "a/t", "c/copy")
    async with running(config(world, client, *routes, ready_without=["b"]), alone=False) as gateway:
        world.b.disconnect()
        put(world.a, "t", 0, b"10")
        await until(lambda: gateway.routes[0].state.send_failures)
        await until(lambda: health.stuck_targets(gateway.routes[0], asyncio.get_running_loop().time()))
        ready = await client.get("/health/ready")
        assert ready.status_code == 200
        assert list(ready.json()["away"]) == ["b"]  # shown all the same
        assert list(ready.json()["stuck"]) == ["r b/copy"]
        world.c.disconnect()
        put(world.a, "t", 0, b"11")
        await until(lambda: health.outage_of(gateway.clusters["c"]) is not None)
        assert (await client.get("/health/ready")).status_code == 503
        world.b.reconnect()
        world.c.reconnect()


async def test_a_gateway_whose_optional_cluster_is_away_at_the_start_is_ready(world: World, client: httpx.AsyncClient) -> None:
    fill(world.a, "t", 1, 10)
    world.b.disconnect()
    for optional, status in (("b", 200), ("c", 503)):
        routes = route("r", "a/t", "b/copy"), route("local", "a/t", "c/copy")
        async with running(config(world, client, *routes, ready_without=optional), alone=False):
            ready = await client.get("/health/ready")
            assert (ready.status_code, list(ready.json()["stopped"])) == (status, ["r"])


def test_optional_clusters_must_exist(world: World) -> None:
    with pytest.raises(ConfigError, match=r"ready_without.*there is no cluster 'd'"):
        from_dict(world.config(http={"ready_without": ["a", "d"]}), adapters=ADAPTERS)


@pytest.mark.parametrize(
    ("host", "headers", "token", "permitted"),
    [
        ("127.0.0.1", {}, None, True),
        ("127.9.9.9", {}, "s3cret", True),
        ("::1", {}, None, True),
        ("::ffff:127.0.0.1", {}, None, True),
        ("10.0.0.7", {}, None, False),
        ("::ffff:10.0.0.7", {}, None, False),
        ("10.0.0.7", {"authorization": "Bearer s3cret"}, "s3cret", True),
        ("10.0.0.7", {"authorization": "Bearer other"}, "s3cret", False),
        ("10.0.0.7", {"authorization": "Bearer "}, "s3cret", False),
        ("10.0.0.7", {"authorization": "Bearer None"}, None, False),
        ("127.0.0.1", {"x-forwarded-for": "10.0.0.7"}, None, False),
        ("127.0.0.1", {"forwarded": "for=10.0.0.7", "authorization": "Bearer s3cret"}, "s3cret", True),
        (None, {}, None, False),
    ],
)
async def test_only_this_machine_or_a_token_may_reload(
    host: str | None, headers: dict[str, str], token: str | None, permitted: bool
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "headers": raw, "client": None if host is None else (host, 1)})
    assert (await why_not_permitted(request, None if token is None else Secret(token)) is None) is permitted


async def test_a_reload_that_is_not_permitted_does_nothing(
    world: World, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.a, "t", 1, 1)
    async with running(config(world, client, route("r", "a/t", "b/copy"), reload_token="s3cret"), alone=False) as gateway:
        answer = await client.post("/reload", headers={"x-forwarded-for": "10.0.0.7"})
        assert (answer.status_code, answer.json()["ok"]) == (403, False)
        assert "s3cret" not in answer.text + caplog.text
        assert "POST /reload from 127.0.0.1 refused" in caplog.text
        assert gateway.reloader.last is None
        taken = await client.post("/reload", headers={"x-forwarded-for": "10.0.0.7", "authorization": "Bearer s3cret"})
        assert taken.status_code == 409  # permitted, but there is no file
