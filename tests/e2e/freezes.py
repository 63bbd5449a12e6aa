"""Switches of administrators, and what a gateway must do while one is switched off, and after it is switched on again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.patience import SERVER_PATIENCE_S

PARTITIONS = 2
COUNT = 10
MAX_WARNINGS = 6
"""Warnings about one switch: of the client, two of the route, and for three queues (two of the topic, and that of retries)."""

Action = Callable[["Case"], Awaitable[None]]


@dataclass(frozen=True)
class Switch:
    """A switch of an administrator: `off` and `on` set it, `text` is a part of the reason that the gateway shows meanwhile."""

    name: str
    side: str
    """"source" or "target"."""
    off: Action
    on: Action
    text: str


class Case:
    """A gateway between the system, with its settings, and embedded logs; and another route, between two logs."""

    def __init__(self, system: str, settings: dict[str, Any], topic: str, switch: Switch, folder: Path, server: Any) -> None:
        self.system, self.settings, self.topic, self.switch = system, settings, topic, switch
        self.server, self.folder = server, folder
        self.group = f"g_{time.time_ns()}"
        self.sent = 0
        self._log = {"path": str(folder / "log.db")}

    def config(self, **to: Any) -> dict[str, Any]:
        """Return the configuration of the two routes; `to` has further options of the target."""
        real, log = {"cluster": "real", "topic": self.topic}, {"cluster": "log", "topic": "mine"}
        source, target = (real, log) if self.switch.side == "source" else (log, real)
        return {
            "clusters": {
                "real": {"system": self.system, **self.settings},
                "log": {"system": "log", **self._log},
            },
            "routes": [
                {"name": "r", "from": {**source, "group": self.group}, "to": {**target, **to}},
                {
                    "name": "other",
                    "from": {"cluster": "log", "topic": "others", "group": "g"},
                    "to": {"cluster": "log", "topic": "copies"},
                },
            ],
        }

    async def prepare(self) -> None:
        """Create the topics of the log."""
        async with opened("log", self._log) as log:
            await log.create("others", 1)
            if self.switch.side == "target":
                await log.create("mine", PARTITIONS)

    async def send(self) -> None:
        """Send messages to each partition of the source of route `r`."""
        settings = self._log if self.switch.side == "target" else self.settings
        system, topic = ("log", "mine") if self.switch.side == "target" else (self.system, self.topic)
        await _send(system, settings, topic)
        self.sent += COUNT

    async def send_other(self) -> None:
        """Send messages to the source of the other route."""
        await _send("log", self._log, "others")


async def _send(system: str, settings: dict[str, Any], topic: str) -> None:
    async with opened(system, settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        batch = Batch.of([Message(b"%d" % number) for number in range(COUNT)])
        assert not (await outbound.send(0, Share(batch))).failures
        await outbound.close()


def rows(gateway: GatewayProcess) -> dict[str, dict[str, Any]]:
    """Return the objects of `/routes` by route name; empty while the gateway does not answer."""
    try:
        return {row["name"]: row for row in httpx.get(f"http://127.0.0.1:{gateway.port}/routes", timeout=5).json()}
    except httpx.HTTPError:
        return {}


def reasons(gateway: GatewayProcess) -> str:
    """Return why the route `r` waits, or its sends fail, or its partitions are not read, by `/routes`."""
    row = rows(gateway).get("r", {})
    return f"{row.get('retrying')} {row.get('failing')} {row.get('paused')} {row.get('failed_topics')} {row.get('stopped')}"


def ready(gateway: GatewayProcess) -> tuple[int, str]:
    """Return the status and the text of `/health/ready`."""
    answer = httpx.get(f"http://127.0.0.1:{gateway.port}/health/ready", timeout=5)
    return answer.status_code, answer.text


async def until(gateway: GatewayProcess, condition: Callable[[], bool]) -> None:
    """Wait for a condition; the gateway must not end meanwhile."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not await asyncio.to_thread(condition):
            assert gateway.process.poll() is None, gateway.log
            await asyncio.sleep(0.2)


async def check_while_running(case: Case) -> None:
    """Switch off while the gateway runs: it shows the reason, the other route goes on, and what was sent is copied later."""
    switch = case.switch
    await case.prepare()
    await case.send()
    with GatewayProcess(case.config(), case.folder) as gateway:
        await asyncio.to_thread(gateway.wait_stored, case.sent)
        if switch.side == "source":  # nothing can be sent to some sources later
            await case.send()
            await asyncio.to_thread(gateway.wait_stored, case.sent)
        await switch.off(case)
        try:
            async with asyncio.timeout(SERVER_PATIENCE_S):
                while switch.text not in await asyncio.to_thread(reasons, gateway):
                    assert gateway.process.poll() is None, gateway.log
                    if switch.side == "target":  # what is sent at once may still be stored
                        await case.send()
                    await asyncio.sleep(0.5)
            await case.send_other()
            await until(gateway, lambda: rows(gateway)["other"]["stored"] >= COUNT)
            assert switch.text in (await asyncio.to_thread(ready, gateway))[1]
            await until(gateway, lambda: bool(warnings(gateway, switch)))
            assert rows(gateway)["r"]["error"] is None
        finally:
            await switch.on(case)
        if switch.side == "source":
            await case.send()
        await asyncio.to_thread(gateway.wait_stored, case.sent)
        await until(gateway, lambda: switch.text not in reasons(gateway))
        await until(gateway, lambda: ready(gateway)[0] == 200)
        _check_log(gateway, switch)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def check_at_start(case: Case) -> None:
    """Start the gateway while it is switched off: it waits, the other route runs, and everything is copied later."""
    switch = case.switch
    await case.prepare()
    await case.send()
    await switch.off(case)
    is_off = True
    try:
        with GatewayProcess(case.config(), case.folder) as gateway:
            await until(gateway, lambda: switch.text in reasons(gateway))
            await case.send_other()
            await until(gateway, lambda: rows(gateway)["other"]["stored"] >= COUNT)
            assert switch.text in (await asyncio.to_thread(ready, gateway))[1]
            await until(gateway, lambda: bool(warnings(gateway, switch)))
            await switch.on(case)
            is_off = False
            await asyncio.to_thread(gateway.wait_stored, case.sent)
            await until(gateway, lambda: ready(gateway)[0] == 200)
            _check_log(gateway, switch)
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    finally:
        if is_off:
            await switch.on(case)


def _check_log(gateway: GatewayProcess, switch: Switch) -> None:
    """Check that the log has the reason as a warning, and not for ever."""
    assert 1 <= len(warnings(gateway, switch)) <= MAX_WARNINGS, gateway.log


def warnings(gateway: GatewayProcess, switch: Switch) -> list[str]:
    """Return the warnings in the log that have the reason."""
    return [line for line in gateway.log.splitlines() if "WARNING" in line and switch.text in line]
