"""Measures the memory of a gateway in its own process, while its target is away and its budget is full.

python -m tests.gateway.full_gateway '{"source": "a.db", "target": "log", "delivery": {}, "to": {}}'
"""

import asyncio
import json
import logging
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

from mqbridge.config.load import from_dict
from mqbridge.gateway.run import Gateway
from mqbridge.testing.memory.broker import get_broker


def resident_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def main(case: dict[str, Any]) -> None:
    folder = Path(case["source"]).parent
    clusters = {
        "a": {"system": "log", "path": case["source"]},
        "log": {"system": "log", "path": str(folder / "b.db"), "busy_timeout": "100ms"},
        "memory": {"system": "memory", "broker": "b"},
        "refusing": {"system": "memory", "broker": "c", "max_message_bytes": 1},
    }
    route = {
        "name": "r",
        "from": {"cluster": "a", "topic": "t", "group": "g"},
        "to": {"cluster": case["target"], "topic": "t"} | case["to"],
        "delivery": case["delivery"],
    }
    gateway = Gateway(from_dict({"clusters": clusters, "http": {"enabled": False}, "routes": [route]}))
    task = asyncio.ensure_future(gateway.run())
    prepared, prepare = asyncio.Event(), gateway._prepare
    locks: list[sqlite3.Connection] = []

    async def prepare_and_cut_off(stack: Any, **options: Any) -> None:
        await prepare(stack, **options)
        locks.append(sqlite3.connect(folder / "b.db", isolation_level=None, timeout=20))  # the gateway has made the file
        locks[0].execute("BEGIN IMMEDIATE")
        get_broker("b").connected.clear()
        prepared.set()

    gateway._prepare = prepare_and_cut_off  # type: ignore[method-assign]
    preparing = asyncio.ensure_future(prepared.wait())
    await asyncio.wait([preparing, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    state = gateway.routes[0].state
    before, unchanged = -1, 0  # the budget is full when nothing has changed in 20 checks
    while unchanged < 20:
        await asyncio.sleep(0.1)
        now = state.counters.received + sum(one.in_flight_batches for one in state.deliveries.values())
        unchanged = unchanged + 1 if now == before and now else 0
        before = now
        if task.done():
            task.result()
    result = {"resident_mb": resident_mb(), "used": state.budget.used, "received": state.counters.received}
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main(json.loads(sys.argv[1])))
