"""A gateway that is started before its cluster."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.support import fill, tubemq_settings
from tests.kit.gateway import GatewayProcess
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

COUNTS = [200, 300]


def settings(tubemq: TubeMQ, folder: Path) -> dict[str, Any]:
    return {
        "clusters": {
            "tube": {"system": "tubemq", **tubemq_settings(tubemq)},
            "there": {"system": "log", "path": str(folder / "target.db")},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "tube", "topic": "orders", "group": "late"},
                "to": {"cluster": "there", "topic": "orders"},
            }
        ],
    }


def wait_for_log(gateway: GatewayProcess, text: str) -> None:
    limit = time.monotonic() + SERVER_PATIENCE_S
    while text not in gateway.log:
        assert time.monotonic() < limit, gateway.log
        assert gateway.process.poll() is None, gateway.log
        time.sleep(0.05)


def wait_until_stopped(gateway: GatewayProcess) -> httpx.Response:
    """Return the readiness page as soon as it lists the route as stopped; the page is served earlier than that."""
    limit = time.monotonic() + SERVER_PATIENCE_S
    while not (ready := httpx.get(f"http://127.0.0.1:{gateway.port}/health/ready")).json()["stopped"]:
        assert time.monotonic() < limit, ready.text
        time.sleep(0.05)
    return ready


def test_a_gateway_waits_for_a_cluster_that_is_started_after_it(tmp_path: Path) -> None:
    """TubeMQ's Master responds long before its Broker, so that the topic seems to be missing for a while."""
    tubemq = TubeMQ({"orders": len(COUNTS)}, pool={})
    try:
        with GatewayProcess(settings(tubemq, tmp_path), tmp_path) as gateway:
            wait_for_log(gateway, "cluster tube cannot be reached, trying again ")
            assert f"{tubemq.masters} cannot be reached" in gateway.log
            assert httpx.get(f"http://127.0.0.1:{gateway.port}/health/live").status_code == 200
            ready = wait_until_stopped(gateway)
            assert (ready.status_code, tubemq.masters in ready.json()["stopped"]["r"]) == (503, True)
            assert (ready.json()["clusters"]["tube"]["up"], tubemq.masters in ready.json()["away"]["tube"]) == (False, True)
            tubemq.start()
            wait_for_log(gateway, "cluster tube can be reached again after")
            asyncio.run(fill(tubemq, "orders", COUNTS, 100))
            gateway.wait_stored(sum(COUNTS))
            assert httpx.get(f"http://127.0.0.1:{gateway.port}/health/ready").status_code == 200
            assert gateway.terminate() == 0, gateway.log
    finally:
        tubemq.kill()
