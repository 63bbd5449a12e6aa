"""Reloading the configuration while running.

Changed routes are restarted without loss, unchanged ones are not touched, and an invalid configuration changes nothing.
"""

import asyncio
import copy
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mqbridge.gateway.reload import ReloadResult
from mqbridge.gateway.run import Gateway
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.gateway.world import World, committed, end, everything, fill, named, put, route, running, stored, until
from tests.patience import PATIENCE_S

COUNT = 300


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def write(file: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Write the configuration, and return a copy for changes."""
    file.write_text(yaml.safe_dump(data))
    return copy.deepcopy(data)


def append(file: Path, line: str) -> None:
    file.write_text(file.read_text() + line)


def remove(file: Path) -> None:
    file.unlink()


def line_of(file: Path, text: str) -> int:
    return next((number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line), 0)


def two_routes(world: World) -> dict[str, Any]:
    fill(world.a, "t", 3, COUNT)
    fill(world.a, "u", 2, COUNT)
    return world.config(route("kept", "a/t", "b/kept"), route("changed", "a/u", "b/before"))


class Watch:
    """Checks that a route is untouched: it keeps all its objects, down to its lanes."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self.seen = self._look(gateway, name)
        self._gateway, self._name = gateway, name

    @staticmethod
    def _look(gateway: Gateway, name: str) -> list[object]:
        one = named(gateway, name)
        lanes = [delivery for _, delivery in sorted(one.state.deliveries.items(), key=lambda item: item[0].index)]
        receivers = [delivery._receiver for delivery in lanes]
        return [
            one,
            gateway._tasks[one],
            one.state.membership,
            one.state.endpoints,
            gateway.clusters["a"],
            gateway.clusters["b"],
            *lanes,
            *receivers,
        ]

    def assert_same(self) -> None:
        now = self._look(self._gateway, self._name)
        assert len(now) == len(self.seen)
        assert all(one is other for one, other in zip(now, self.seen, strict=True))
        assert not any(task.done() for task in now if isinstance(task, asyncio.Task))


async def test_only_changed_routes_are_restarted_and_no_message_is_lost(world: World, file: Path) -> None:
    config = write(file, two_routes(world))
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT and committed(world.a, "g-changed") == COUNT)
        watch = Watch(gateway, "kept")
        gone = named(gateway, "changed")
        world.b.faults.receipt_delay_s = 0.02
        for n in range(COUNT, COUNT + 200):
            put(world.a, "u", n % 2, b"%d" % n)
        config["routes"][1] = route("changed", "a/u", "b/after", "b/before")
        write(file, config)
        result = await gateway.reloader.reload()
        assert (result.problems, result.warnings) == ([], [])
        assert result.routes == {"started": ["changed"], "removed": []}
        watch.assert_same()
        assert named(gateway, "changed") is not gone
        for n in range(COUNT + 200, COUNT + 300):
            put(world.a, "u", n % 2, b"%d" % n)
        await until(lambda: committed(world.a, "g-changed") == COUNT + 300)
        assert named(gateway, "changed").state.counters.acknowledged == COUNT + 300  # totals continue
        watch.assert_same()
    assert everything(world.b, "before") == list(range(COUNT + 300))
    after = everything(world.b, "after")
    assert after == list(range(after[0], COUNT + 300))
    assert after[0] <= COUNT + 200


async def test_routes_are_added_and_removed(world: World, file: Path) -> None:
    config = write(file, two_routes(world))
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT and committed(world.a, "g-changed") == COUNT)
        watch = Watch(gateway, "kept")
        del config["routes"][1]
        config["routes"].insert(0, route("new", "a/u", "c/new"))
        write(file, config)
        result = await gateway.reloader.reload()
        assert result.routes == {"started": ["new"], "removed": ["changed"]}
        assert [one.name for one in gateway.routes] == ["new", "kept"]
        await until(lambda: everything(world.c, "new") == list(range(COUNT)))
        put(world.a, "u", 0, b"%d" % COUNT)
        await until(lambda: committed(world.a, "g-new") == COUNT + 1)
        assert committed(world.a, "g-changed") == COUNT
        watch.assert_same()
        config["routes"] = config["routes"][1:]
        write(file, config)
        assert (await gateway.reloader.reload()).routes == {"started": [], "removed": ["new"]}
        watch.assert_same()


async def test_clusters_are_added_and_removed(world: World, file: Path) -> None:
    config = write(file, two_routes(world))
    closed: list[str] = []
    async with running(config, file) as gateway:
        for name, cluster in gateway.clusters.items():

            async def close(_: float | None = None, name: str = name) -> None:
                closed.append(name)

            cluster.close = close  # type: ignore[method-assign]
        await until(lambda: committed(world.a, "g-kept") == COUNT)
        watch, before = Watch(gateway, "kept"), dict(gateway.clusters)
        config["clusters"]["d"] = config["clusters"]["c"] | {"batch_messages": 7}
        del config["clusters"]["c"]
        config["routes"][1] = route("changed", "a/u", "d/after")
        write(file, config)
        assert (await gateway.reloader.reload()).problems == []
        assert closed == ["c"]
        assert set(gateway.clusters) == {"a", "b", "d"}
        watch.assert_same()
        config["clusters"]["a"]["batch_messages"] = 9  # used by both routes
        write(file, config)
        assert (await gateway.reloader.reload()).routes == {"started": ["kept", "changed"], "removed": []}
        assert closed == ["c", "a"]
        assert gateway.clusters["a"] is not before["a"]
        assert gateway.clusters["b"] is before["b"]
        put(world.a, "t", 0, b"%d" % COUNT)
        await until(lambda: everything(world.b, "kept") == list(range(COUNT + 1)))
    assert closed == ["c", "a", "b"]


def no_cluster(config: dict[str, Any]) -> None:
    config["routes"][1]["to"][0]["cluster"] = "d"


def no_topic(config: dict[str, Any]) -> None:
    config["routes"][1]["from"]["topic"] = "none"


def no_partition(config: dict[str, Any]) -> None:
    config["routes"][1]["to"][0] |= {"partitions": {"by": "table", "table": {"0": 0}}}


def not_reached(config: dict[str, Any]) -> None:
    config["clusters"]["d"] = config["clusters"]["c"] | {"broker": "away"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (no_cluster, "gateway.yaml:{line}: routes[1].to[0].cluster: there is no cluster 'd'. Known: a, b, c"),
        (no_topic, "route 'changed': the topic 'none' does not exist in cluster 'a'"),
        (
            no_partition,
            "route 'changed': target b/before has no partition for partition '1' of source a/u: the table of `partitions`",
        ),
        (not_reached, "memory cluster 'd' is disconnected"),
    ],
)
async def test_a_rejected_configuration_changes_nothing(
    world: World, file: Path, change: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    get_broker("away").disconnect()
    config = write(file, two_routes(world))
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT and committed(world.a, "g-changed") == COUNT)
        watches, before = [Watch(gateway, "kept"), Watch(gateway, "changed")], gateway.config
        config["routes"][0]["delivery"] = {"rate": 7.0}
        change(config)
        write(file, config)
        result = await gateway.reloader.reload()
        line = line_of(file, "cluster: d")
        assert len(result.problems) == 1
        assert problem.format(line=line) in result.problems[0]
        assert result.problems[0] in caplog.text
        assert gateway.config is before
        for watch in watches:
            watch.assert_same()
        put(world.a, "t", 0, b"%d" % COUNT)
        await until(lambda: committed(world.a, "g-kept") == COUNT + 1)
    delete_broker("away")


async def test_an_invalid_or_missing_file_changes_nothing(world: World, file: Path) -> None:
    config = write(file, two_routes(world))
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT)
        watch = Watch(gateway, "kept")
        append(file, "clusters: [")
        result = await gateway.reloader.reload()
        assert result.problems[0].startswith(f"{file}:")
        assert "not well-formed YAML" in result.problems[0]
        remove(file)
        assert "cannot be read: No such file" in (await gateway.reloader.reload()).problems[0]
        write(file, config)
        result = await gateway.reloader.reload()
        assert (result.problems, result.routes) == ([], {"started": [], "removed": []})
        watch.assert_same()


async def test_a_reload_restarts_a_stopped_route(world: World, file: Path) -> None:
    config = write(file, two_routes(world))
    world.b.create("kept", 3)
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT and committed(world.a, "g-changed") == COUNT)
        world.b.faults.refuse = lambda message: "too odd" if message.payload == b"300" else None
        put(world.a, "t", 0, b"300")
        await until(lambda: named(gateway, "kept").state.error is not None)
        watch = Watch(gateway, "changed")
        world.b.faults.refuse = None
        assert (await gateway.reloader.reload()).routes == {"started": ["kept"], "removed": []}
        await until(lambda: everything(world.b, "kept") == list(range(COUNT + 1)))
        watch.assert_same()


async def test_options_that_need_a_restart_are_logged(world: World, file: Path, tmp_path: Path) -> None:
    config = write(file, two_routes(world))
    applied = []
    async with running(config, file) as gateway:
        gateway.on_applied = applied.append
        config |= {"state": str(tmp_path / "state.db"), "log": {"level": "debug"}, "shutdown_timeout": "7s"}
        config["http"] = {"enabled": False, "listen": "127.0.0.1:1"}
        write(file, config)
        for _ in range(2):  # and again as long as it is so
            result = await gateway.reloader.reload()
            assert (result.problems, [one.split()[0] for one in result.warnings]) == ([], ["`state`", "`http`"])
        assert [one.log.level for one in applied] == ["debug", "debug"]
        assert {one._drain_s for one in gateway.routes} == {7.0}


async def test_watching_the_file(world: World, file: Path) -> None:
    config = write(file, two_routes(world) | {"reload": {"watch": "100ms"}})
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT)
        watch = Watch(gateway, "kept")
        append(file, "")
        await asyncio.sleep(0.4)
        assert gateway.reloader.last is None
        config["routes"].append(route("third", "a/u", "c/third"))
        write(file, config)
        await until(lambda: everything(world.c, "third") == list(range(COUNT)))
        append(file, "oops: 1\n")
        await until(lambda: gateway.reloader.last is not None and gateway.reloader.last.problems)
        failed = gateway.reloader.last
        await asyncio.sleep(0.4)
        assert gateway.reloader.last is failed  # once for each content
        remove(file)
        await asyncio.sleep(0.4)
        assert gateway.reloader.last is failed
        del config["routes"][2]
        write(file, config)
        await until(lambda: len(gateway.routes) == 2)
        watch.assert_same()


async def test_a_config_map_swaps_symbolic_links(world: World, tmp_path: Path) -> None:
    config = two_routes(world) | {"reload": {"watch": "100ms"}}
    (tmp_path / "one").mkdir()
    file, changed = tmp_path / "gateway.yaml", write(tmp_path / "one" / "gateway.yaml", config)
    (tmp_path / "..data").symlink_to("one")
    file.symlink_to("..data/gateway.yaml")
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT)
        watch = Watch(gateway, "kept")
        (tmp_path / "two").mkdir()
        changed["routes"][1] = route("new", "a/u", "c/new")
        write(tmp_path / "two" / "gateway.yaml", changed)
        (tmp_path / "..data_tmp").symlink_to("two")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await until(lambda: everything(world.c, "new") == list(range(COUNT)))
        watch.assert_same()


async def test_by_http(world: World, file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = write(file, two_routes(world) | {"http": {"listen": address}})
    async with running(config, file, alone=False) as gateway, httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.get("/health/ready")).json()["reload"] is None
        assert (await client.get("/reload")).status_code == 405
        config["routes"].append(route("third", "a/u", "c/third"))
        write(file, config)
        taken = await client.post("/reload")
        assert (taken.status_code, taken.json()["ok"], taken.json()["started"]) == (200, True, ["third"])
        assert "mqbridge_reload_ok 1.0" in (await client.get("/metrics")).text
        write(file, config | {"rotues": []})
        refused = await client.post("/reload")
        assert (refused.status_code, refused.json()["ok"]) == (422, False)
        assert "rotues: there is no such key here. Did you mean 'routes'?" in refused.json()["problems"][0]
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["reload"]["problems"]) == (200, refused.json()["problems"])
        page = (await client.get("/metrics")).text
        assert "mqbridge_reload_ok 0.0" in page
        assert 'mqbridge_looped_messages_total{route="kept"} 0.0' in page
        await until(lambda: committed(world.a, "g-third") == COUNT)
        rows = {row["name"]: row for row in (await client.get("/routes")).json()}
        assert rows["third"]["targets"] == {"u": {"c/third": 2}}
        assert rows["third"]["looped"] == rows["third"]["filtered"] == 0
        assert len(gateway.routes) == 3


async def test_without_a_file_there_is_nothing_to_read(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = two_routes(world) | {"http": {"listen": address}}
    async with running(config, alone=False), httpx.AsyncClient(base_url=f"http://{address}") as client:
        answer = await client.post("/reload")
        assert (answer.status_code, answer.json()["ok"]) == (409, False)


async def test_a_stop_in_the_middle_of_a_reload(world: World, file: Path) -> None:
    config = write(file, two_routes(world))
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-kept") == COUNT and committed(world.a, "g-changed") == COUNT)
        world.b.faults.hold_receipts = True
        put(world.a, "u", 0, b"%d" % COUNT)
        await until(lambda: world.b.withheld_receipts)
        config["routes"][1] = route("changed", "a/u", "b/after")
        write(file, config)
        waiting = asyncio.ensure_future(gateway.reloader.reload())
        await until(lambda: gateway._is_applying)
        gateway.stop()
        await until(lambda: not gateway.ready)
        world.b.release_receipts()
        result: ReloadResult = await asyncio.wait_for(waiting, PATIENCE_S)
        assert result.problems == ["cannot reload: the gateway is stopping"]
    assert committed(world.a, "g-changed") == COUNT + 1
    assert "after" not in world.b.topics or everything(world.b, "after") == []


async def test_an_idle_gateway_does_not_end_while_it_reloads(world: World, file: Path) -> None:
    config = write(file, world.config(route("r", "a/t", "b/t")))
    fill(world.a, "t", 1, 10)
    async with running(config, file) as gateway:
        await until(lambda: committed(world.a, "g-r") == 10)
        config["routes"][0] = route("r", "a/t", "c/t", end("b/t"))
        write(file, config)
        assert (await gateway.reloader.reload()).problems == []
        put(world.a, "t", 0, b"10")
        await until(lambda: stored(world.c, "t") == [[b"10"]])
        assert gateway.ready


async def test_a_reload_with_an_unreachable_cluster_is_retried(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reload is retried by itself; until then the old configuration stays in effect."""
    monkeypatch.setattr("mqbridge.gateway.reload.MIN_RETRY_PAUSE_S", 0.05)
    config = write(file, two_routes(world))
    async with running(config, file) as gateway:
        world.c.disconnect()
        config["routes"].append(route("late", "a/t", "d/late"))
        config["clusters"]["d"] = config["clusters"]["c"]
        write(file, config)
        first = await gateway.reloader.reload()
        assert first.problems == ["memory cluster 'd' is disconnected"]
        assert first.retry_in_s is not None
        await until(lambda: caplog.text.count("will be tried again in ") > 1)
        assert [route.name for route in gateway.routes] == ["kept", "changed"]
        world.c.reconnect()
        await until(lambda: everything(world.c, "late") == list(range(COUNT)))
        assert gateway.reloader.last is not None
        assert not gateway.reloader.last.problems
