"""The gateway as a process: SIGHUP reloads the configuration and does not end the process."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import load_adapters
from mqbridge.message import Batch, Message, Share
from tests.kit.gateway import GatewayProcess


async def feed(path: Path, payloads: list[bytes]) -> None:
    adapter = load_adapters()["log"]
    cluster = adapter.make_cluster("w", adapter.cluster_model(path=path))
    await cluster.connect()
    await cluster.create("t", 2)
    outbound = await cluster.outbound(OutboundSpec("t"))
    assert not (await outbound.send(0, Share(Batch.of([Message(payload) for payload in payloads])))).failures
    await outbound.close()
    await cluster.close()


def configuration(folder: Path, *targets: str) -> dict[str, Any]:
    return {
        "clusters": {name: {"system": "log", "path": str(folder / f"{name}.db"), "poll": "10ms"} for name in ("a", "b")},
        "routes": [
            {"name": f"to-{name}", "from": {"cluster": "a", "topic": "t", "group": name}, "to": {"cluster": "b", "topic": name}}
            for name in targets
        ],
    }


def rows(gateway: GatewayProcess) -> dict[str, Any]:
    try:
        return {row["name"]: row for row in httpx.get(f"http://127.0.0.1:{gateway.port}/routes", timeout=5).json()}
    except httpx.HTTPError:
        return {}


def wait(gateway: GatewayProcess, stored: dict[str, int]) -> None:
    wait_for(gateway, lambda: {name: row["stored"] for name, row in rows(gateway).items()} == stored)


def wait_for(gateway: GatewayProcess, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert gateway.process.poll() is None, gateway.log
        assert time.monotonic() < deadline, (rows(gateway), gateway.log)
        time.sleep(0.05)


async def test_sighup_reloads_the_configuration(tmp_path: Path) -> None:
    await feed(tmp_path / "a.db", [b"1", b"2", b"3"])
    with GatewayProcess(configuration(tmp_path, "one"), tmp_path) as gateway:
        wait(gateway, {"to-one": 3})
        file = tmp_path / "gateway.yaml"
        http = yaml.safe_load(file.read_text())["http"]
        file.write_text(yaml.safe_dump({"http": http, "log": {"format": "json"}, **configuration(tmp_path, "one", "two")}))
        os.kill(gateway.process.pid, signal.SIGHUP)
        wait(gateway, {"to-one": 3, "to-two": 3})
        assert rows(gateway)["to-one"]["error"] is None
        file.write_text("routes: 7\n")
        os.kill(gateway.process.pid, signal.SIGHUP)
        wait_for(gateway, lambda: f"{file}:1: routes: " in gateway.log)
        assert "was rejected" in gateway.log
        assert '"level":"error"' in gateway.log  # the log's new format was taken at once
        await feed(tmp_path / "a.db", [b"4"])
        wait(gateway, {"to-one": 4, "to-two": 4})
        assert gateway.terminate() == 0
