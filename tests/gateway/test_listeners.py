"""Listeners in a gateway: they start with their clusters, are reloaded and drained, and are shown in health and metrics."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mqbridge.adapter.numbering import OffsetNumbering, PackedNumbering
from mqbridge.config.load import from_dict
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway.listeners import ListenerRunner, check_listeners, group_store_path
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.gateway.status_server import StatusServer
from mqbridge.listener.listener import ListenerState
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from tests.gateway.world import ADAPTERS, World, fill, route, until
from tests.kit.line_server import SERVERS, LineClient, LineServer
from tests.patience import PATIENCE_S


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def listener(name: str = "app", cluster: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "system": "lines", "cluster": cluster, "listen": "127.0.0.1:0"} | more


def config_of(world: World, *listeners: dict[str, Any], **more: Any) -> dict[str, Any]:
    return world.config(*more.pop("routes", ()), listeners=list(listeners), **more)


@contextlib.asynccontextmanager
async def running(
    config: dict[str, Any], file: Path | None = None, *, until_idle_s: float | None = None
) -> AsyncIterator[Gateway]:
    """Run a gateway; stop and drain it at the end, and check that it leaves no task."""
    before = asyncio.all_tasks()
    if file is not None:
        write(file, config)
    gateway = Gateway(from_dict(config, adapters=ADAPTERS, servers=SERVERS), ADAPTERS, file, servers=SERVERS)
    task = asyncio.ensure_future(gateway.run(until_idle_s))
    try:
        while not gateway.ready:
            if task.done():
                task.result()
            await asyncio.sleep(0)
        yield gateway
    finally:
        gateway.stop()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), PATIENCE_S)
    left = {one.get_name() for one in asyncio.all_tasks() - before if not one.done()}
    assert left == set()


def named(gateway: Gateway, name: str = "app") -> ListenerRunner:
    return next(runner for runner in gateway.listeners if runner.name == name)


async def serving(gateway: Gateway, name: str = "app") -> str:
    """Wait until the listener serves clients; return its address."""
    await until(lambda: named(gateway, name).state is ListenerState.SERVING)
    return named(gateway, name).address


def write(file: Path, config: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(config))


async def reload(gateway: Gateway, file: Path, config: dict[str, Any]) -> dict[str, Any]:
    write(file, config)
    return (await gateway.reloader.reload()).as_dict()


async def test_a_gateway_without_routes_serves_clients_until_it_is_stopped(world: World) -> None:
    fill(world.a, "orders", 3, 0)
    async with running(config_of(world, listener())) as gateway:
        client = await LineClient.connect(await serving(gateway))
        assert await client.ask("hello") == "welcome"
        assert await client.ask("topic lines/orders") == "orders 3"
        assert await client.ask("topic lines/new") == "new 4"
        gateway.stop()
        assert await client.line() == "bye"
        assert await client.line() == ""
        await client.close()
    assert named(gateway).state is ListenerState.STOPPED


async def test_a_gateway_with_a_listener_goes_on_when_its_routes_have_ended(world: World) -> None:
    fill(world.a, "t", 1, 3)
    async with running(config_of(world, listener(), routes=[route("r", "a/t", "b/t")])) as gateway:
        address = await serving(gateway)
        (task,) = gateway._tasks.values()
        gateway.routes[0].stop()
        await until(task.done)
        await asyncio.sleep(0.3)  # several checks whether the gateway ends
        client = await LineClient.connect(address)
        assert await client.ask("hello") == "welcome"
        await client.close()


async def test_until_idle_listeners_do_not_count(world: World) -> None:
    fill(world.a, "t", 1, 3)
    config = config_of(world, listener(), routes=[route("r", "a/t", "b/t")])
    gateway = Gateway(from_dict(config, adapters=ADAPTERS, servers=SERVERS), ADAPTERS, servers=SERVERS)
    result: RunResult = await asyncio.wait_for(gateway.run(0.1), PATIENCE_S)
    assert result.clean
    assert [one.name for one in result.listeners] == ["app"]
    assert result.as_json()["listeners"][0]["received_messages"] == 0


async def test_a_listener_of_an_unreachable_cluster_is_bound_and_starts_when_it_is_reached(world: World, free_port: int) -> None:
    world.a.connected.clear()
    http = {"listen": "127.0.0.1:0"}
    config = config_of(world, listener(listen=f"127.0.0.1:{free_port}"), listener("other", "b"), http=http)
    async with running(config) as gateway:
        await serving(gateway, "other")
        assert named(gateway).state is ListenerState.BOUND
        assert "a" in (named(gateway).problem or "")
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", free_port))
        world.a.connected.set()
        client = await LineClient.connect(await serving(gateway))
        assert await client.ask("hello") == "welcome"
        await client.close()
        assert named(gateway).problem is None


async def test_fail_fast_ends_a_gateway_whose_listener_cannot_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineServer, "start_errors", [ClusterError("no schemas", Failure.FATAL)])
    config = from_dict(config_of(world, listener()), adapters=ADAPTERS, servers=SERVERS)
    gateway = Gateway(config, ADAPTERS, servers=SERVERS, fail_fast=True)
    with pytest.raises(ClusterError, match="no schemas"):
        await gateway.run()
    assert named(gateway).state is ListenerState.STOPPED


async def test_a_start_that_fails_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.listeners.MIN_START_PAUSE_S", 0.01)
    monkeypatch.setattr(LineServer, "start_errors", [ClusterError("no schemas"), ClusterError("no schemas")])
    served: list[str] = []
    config = from_dict(config_of(world, listener()), adapters=ADAPTERS, servers=SERVERS)
    gateway = Gateway(config, ADAPTERS, servers=SERVERS)
    gateway.on_serving = lambda runner: served.append(runner.name)
    task = asyncio.ensure_future(gateway.run())
    await until(lambda: served == ["app"])
    gateway.stop()
    await asyncio.wait_for(task, PATIENCE_S)
    assert LineServer.start_errors == []


async def test_a_port_that_is_in_use_ends_the_start(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = config_of(world, listener("first"), listener(listen=f"127.0.0.1:{port}"))
        with pytest.raises(ConfigError, match=rf"listeners\.app\.listen: cannot listen on 127\.0\.0\.1:{port}"):
            await Gateway(from_dict(config, adapters=ADAPTERS, servers=SERVERS), ADAPTERS, servers=SERVERS).run()


async def test_an_open_listener_is_a_loud_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(config_of(world, listener(listen="0.0.0.0:0", open=True), listener("local"))) as gateway:
        await serving(gateway)
        await serving(gateway, "local")
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [text for text in warnings if "listener app is OPEN" in text and "do not authenticate" in text]
    assert not [text for text in warnings if "local" in text]
    assert any("listener app serves lines clients at 0.0.0.0:" in one.getMessage() for one in caplog.records)


# --- the state of groups ------------------------------------------------------------------------------------------------


async def test_own_groups_are_kept_beside_the_state_file_whose_lock_guards_both(world: World, tmp_path: Path) -> None:
    state = tmp_path / "s.db"
    config = config_of(world, listener(groups="own"), state=str(state))
    async with running(config) as gateway:
        await serving(gateway)
        assert group_store_path(state) == tmp_path / "s.db.groups"
        assert group_store_path(state).exists()
        second = Gateway(from_dict(config, adapters=ADAPTERS, servers=SERVERS), ADAPTERS, servers=SERVERS)
        with pytest.raises(ConfigError, match="is in use by another gateway"):
            await second.run()
    async with running(config) as gateway:
        await serving(gateway)


def test_all_links_to_a_state_file_have_one_file_of_groups(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    assert group_store_path(tmp_path / "link.db") == group_store_path(tmp_path / "real.db") == tmp_path / "real.db.groups"


# --- reloads ------------------------------------------------------------------------------------------------------------


async def test_a_reload_keeps_unchanged_listeners_and_binds_the_others_again(world: World, file: Path, free_port: int) -> None:
    kept, changed = listener("kept"), listener("changed", listen=f"127.0.0.1:{free_port}")
    config = config_of(world, kept, changed, listener("removed"))
    async with running(config, file) as gateway:
        for name in ("kept", "changed", "removed"):
            await serving(gateway, name)
        old = {name: named(gateway, name) for name in ("kept", "changed", "removed")}
        client, moved = await LineClient.connect(old["kept"].address), await LineClient.connect(old["changed"].address)
        config["listeners"] = [listener("new"), changed | {"create": {"partitions": 9}}, kept]
        result = await reload(gateway, file, config)
        assert (result["problems"], result["started"], result["removed"]) == ([], [], [])
        assert result["listeners"] == {"started": ["new", "changed"], "removed": ["removed"]}
        assert [runner.name for runner in gateway.listeners] == ["new", "changed", "kept"]
        assert named(gateway, "kept") is old["kept"]
        assert await client.ask("hello") == "welcome"
        assert await moved.line() == "bye"
        await serving(gateway, "new")
        assert await serving(gateway, "changed") == old["changed"].address
        again = await LineClient.connect(old["changed"].address)
        assert await again.ask("topic lines/x") == "x 9"
        assert old["changed"].state is old["removed"].state is ListenerState.STOPPED
        for each in (client, moved, again):
            await each.close()


async def test_a_listener_moves_with_its_cluster(world: World, file: Path) -> None:
    config = config_of(world, listener(), listener("other", "b"))
    async with running(config, file) as gateway:
        await serving(gateway)
        before, other = named(gateway), named(gateway, "other")
        config["clusters"]["a"]["batch_messages"] = 7
        result = await reload(gateway, file, config)
        assert result["listeners"] == {"started": ["app"], "removed": []}
        await serving(gateway)
        assert named(gateway) is not before
        assert named(gateway, "other") is other


async def test_a_new_address_that_is_in_use_changes_nothing(world: World, file: Path) -> None:
    config = config_of(world, listener())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with running(config, file) as gateway:
            address, before = await serving(gateway), named(gateway)
            config["listeners"] = [listener(listen=f"127.0.0.1:{taken.getsockname()[1]}"), listener("second")]
            (problem,) = (await reload(gateway, file, config))["problems"]
            assert "listeners.app.listen: cannot listen on" in problem
            assert gateway.listeners == [before]
            client = await LineClient.connect(address)
            assert await client.ask("hello") == "welcome"
            await client.close()


async def test_a_listener_that_cannot_be_bound_again_runs_as_before(world: World, file: Path, free_port: int) -> None:
    """The web address is in use. The listener's own address has to be released before that is seen."""
    here = f"127.0.0.1:{free_port}"
    config = config_of(world, listener(listen=here), listener("second"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with running(config, file) as gateway:
            assert await serving(gateway) == here
            second = named(gateway, "second")
            config["listeners"][0] = listener(listen=here, web=f"127.0.0.1:{taken.getsockname()[1]}")
            (problem,) = (await reload(gateway, file, config))["problems"]
            assert "listeners.app.web: cannot listen on" in problem
            assert await serving(gateway) == here
            assert named(gateway, "second") is second
            client = await LineClient.connect(here)
            assert await client.ask("hello") == "welcome"
            await client.close()


async def test_own_groups_that_a_reload_brings_need_a_state_file_from_the_start(world: World, file: Path, tmp_path: Path) -> None:
    config = config_of(world, listener())
    async with running(config, file) as gateway:
        await serving(gateway)
        config["listeners"].append(listener("own", groups="own"))
        config["state"] = str(tmp_path / "s.db")
        (problem,) = (await reload(gateway, file, config))["problems"]
        assert problem == (
            "listeners.own.groups: `groups: own` needs the state file, and `state` takes effect only at a start. "
            "Restart the gateway"
        )
        assert named(gateway).state is ListenerState.SERVING


# --- numbers ------------------------------------------------------------------------------------------------------------

NUMBERS = (
    "listeners.app.cluster: clients of lines number the messages of a queue one by one, and the positions of cluster 'a' do not "
    "count messages. Choose a cluster whose positions are offsets, such as one of RocketMQ or an embedded log"
)


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients need dense numbers, which cluster a does not have."""
    monkeypatch.setitem(SERVERS, "lines", replace(SERVERS["lines"], needs_dense_numbers=True))
    original = MemoryCluster.__init__

    def changed(self: MemoryCluster, name: str, *arguments: Any) -> None:
        original(self, name, *arguments)
        self.numbering = PackedNumbering(1) if name == "a" else OffsetNumbering()

    monkeypatch.setattr(MemoryCluster, "__init__", changed)


@pytest.mark.usefixtures("sparse")
async def test_a_cluster_whose_numbers_are_not_dense_ends_the_start(world: World) -> None:
    config = from_dict(config_of(world, listener()), adapters=ADAPTERS, servers=SERVERS)
    with pytest.raises(ConfigError) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await Gateway(config, ADAPTERS, servers=SERVERS).run()
    assert str(caught.value) == NUMBERS


@pytest.mark.usefixtures("sparse")
async def test_a_reload_to_a_cluster_whose_numbers_are_not_dense_changes_nothing(world: World, file: Path) -> None:
    config = config_of(world, listener(cluster="b"))
    async with running(config, file) as gateway:
        address, before = await serving(gateway), named(gateway)
        config["listeners"] = [listener()]
        assert (await reload(gateway, file, config))["problems"] == [NUMBERS]
        assert gateway.listeners == [before]
        client = await LineClient.connect(address)
        assert await client.ask("hello") == "welcome"
        await client.close()


@pytest.mark.usefixtures("sparse")
def test_a_cluster_whose_numbers_are_not_dense_is_found_without_a_connection(world: World) -> None:
    config = from_dict(config_of(world, listener("good", "b"), listener(), listener("c")), adapters=ADAPTERS, servers=SERVERS)
    world.a.connected.clear()
    with pytest.raises(ConfigErrors) as caught:
        check_listeners(config, ADAPTERS, SERVERS)
    assert list(map(str, caught.value.errors)) == [NUMBERS, NUMBERS.replace("app", "c")]


# --- what is shown ------------------------------------------------------------------------------------------------------


async def test_listeners_are_shown_over_http(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    enter = StatusServer.__aenter__

    async def remember(self: StatusServer) -> StatusServer:
        ports.append(self.port)
        return await enter(self)

    monkeypatch.setattr(StatusServer, "__aenter__", remember)
    world.b.connected.clear()
    config = config_of(
        world,
        listener(web="127.0.0.1:0", limits={"connections": 1}),
        listener("waiting", "b"),
        http={"listen": "127.0.0.1:0"},
    )
    async with running(config) as gateway, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        base = f"http://127.0.0.1:{ports[0]}"
        address = await serving(gateway)
        client = await LineClient.connect(address)
        assert [await client.ask("hello"), await client.ask("say")] == ["welcome", "said"]
        refused = await LineClient.connect(address)
        assert await refused.line() == "full"
        served, waiting = (await http.get(f"{base}/listeners")).json()
        assert served | {"web": None} == {
            "name": "app",
            "system": "lines",
            "cluster": "a",
            "address": address,
            "web": None,
            "state": "serving",
            "problem": None,
            "connections": 1,
            "refused_connections": 1,
            "producers": 1,
            "consumers": 0,
            "received_messages": 1,
            "received_bytes": 0,
            "delivered_messages": 0,
            "delivered_bytes": 0,
            "redelivered_messages": 0,
            "refused_requests": 0,
            "dead_letters": 0,
            "in_flight_bytes": 0,
            "unacknowledged_bytes": 0,
            "details": {"sessions": 1},
        }
        assert (await http.get(f"http://{served['web']}/")).text == "lines"
        assert (waiting["state"], waiting["details"]) == ("bound", {"sessions": 0})
        ready = await http.get(f"{base}/health/ready")
        assert ready.status_code == 503
        assert set(ready.json()["listeners"]) == {"waiting"}
        assert set(ready.json()["away"]) == {"b"}
        metrics = (await http.get(f"{base}/metrics")).text
        for line in (
            'mqbridge_listener_up{listener="app"} 1.0',
            'mqbridge_listener_up{listener="waiting"} 0.0',
            'mqbridge_listener_connections{listener="app"} 1.0',
            'mqbridge_listener_refused_connections_total{listener="app"} 1.0',
            'mqbridge_listener_received_messages_total{listener="app"} 1.0',
            'mqbridge_listener_dead_letters_total{listener="app"} 0.0',
        ):
            assert line in metrics.splitlines()
        assert (await http.get(f"{base}/routes")).json() == []
        world.b.connected.set()
        await serving(gateway, "waiting")
        await until_ready(http, base)
        await client.close()
        await refused.close()


async def until_ready(http: httpx.AsyncClient, base: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await http.get(f"{base}/health/ready")).status_code != 200:
            await asyncio.sleep(0.01)
