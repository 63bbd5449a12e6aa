"""A target that is an embedded log on a full disk: its cause is in the log of the gateway, and nothing is lost."""

import asyncio
import logging
from pathlib import Path

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import load_adapters
from mqbridge.config.load import from_dict
from mqbridge.gateway import report
from mqbridge.gateway.run import Gateway
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from tests.gateway.world import until


async def _fill(path: Path) -> None:
    """Store ten messages of 100 kB in the topic `orders` of the log at this path."""
    source = LogCluster("source", LogSettings(path=path))
    await source.connect()
    await source.create("orders", 1)
    outbound = await source.outbound(OutboundSpec("orders"))
    await outbound.send(0, Share(Batch.of([Message(bytes(100_000)) for _ in range(10)])))
    await outbound.close()
    await source.close()


async def test_a_log_on_a_full_disk_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FAILING_CHECK_S", 0.01)
    monkeypatch.setattr(report, "FAILING_LOG_S", 0.05)
    caplog.set_level(logging.INFO, "mqbridge.gateway")
    await _fill(tmp_path / "source.db")
    config = {
        "clusters": {name: {"system": "log", "path": str(tmp_path / f"{name}.db")} for name in ("source", "target")},
        "routes": [
            {
                "name": "copy",
                "from": {"cluster": "source", "topic": "orders", "group": "g"},
                "to": {"cluster": "target", "topic": "orders", "create": True},
            }
        ],
        "http": {"enabled": False},
    }
    adapters = load_adapters()
    gateway = Gateway(from_dict(config, adapters=adapters), adapters)
    make = LogCluster.outbound

    async def on_a_full_disk(self: LogCluster, spec: OutboundSpec) -> object:
        """Open the outbound of a log that can grow no more."""
        (pages,) = await self.store.write(lambda connection: connection.execute("PRAGMA page_count").fetchone())
        await self.store.write(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone())
        return await make(self, spec)

    monkeypatch.setattr(LogCluster, "outbound", on_a_full_disk)
    running = asyncio.ensure_future(gateway.run())
    await until(lambda: "route copy: sends to target target/orders have failed" in caplog.text)
    assert "database or disk is full" in caplog.text
    target = gateway.clusters["target"]
    assert isinstance(target, LogCluster)
    await target.store.write(lambda connection: connection.execute("PRAGMA max_page_count=1000000").fetchone())
    await until(lambda: "target target/orders stores messages again" in caplog.text)
    gateway.stop()
    await running
    assert gateway.routes[0].state.counters.totals()["stored"] == 10
