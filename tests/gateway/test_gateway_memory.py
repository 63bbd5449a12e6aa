"""Resident memory with default settings stays below LIMIT_MB while a target is away, for all kinds of messages.

Measured peaks in MB, with the log and with the memory system as the target: 20 bytes 65 and 59, 100 bytes 68 and 60,
with properties 69 and 61, edited 68, 1 KiB 69 and 61, one by one 62 and 58, 4 MiB 78 and 70, 300 partitions 81 and 72 (58
and 57 at 1 MiB). With a log as the target, messages are in memory twice: as received, and as encoded records.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.registration import ADAPTER
from mqbridge.message import Batch, Message, Share

LIMIT_MB = 150
LETTERS_LIMIT_MB = 200
"""Limit if each message becomes a dead letter, which is larger than the message; measured: 71."""
ENOUGH_BYTES = 48 << 20
"""Total size of the messages: more than a route reads with default settings while its target is away."""
PROPERTIES = tuple((f"name{n}", f"value-{n}") for n in range(5))
EDIT = {"edit": {"set": {"seen": "yes"}}}
LETTERS = {"dead_letter": {"cluster": "log", "topic": "dead"}}


async def filled(path: Path, *, partitions: int, per_send: int, message: Message, total: int) -> None:
    """Make a log of identical messages."""
    cluster = ADAPTER.make_cluster("a", ADAPTER.cluster_model(path=path, synchronous="normal"))
    await cluster.connect()
    await cluster.create("t", partitions)
    outbound = await cluster.outbound(OutboundSpec("t"))
    batch = Batch.of([message] * per_send)
    for first in range(0, total, per_send * 500):
        count = min(500, -(-(total - first) // per_send))
        receipts = [outbound.send(n % partitions, Share(batch)) for n in range(count)]
        assert not (await receipts[-1]).failures
    await outbound.close()
    await cluster.close()


LONG = [pytest.mark.thorough, pytest.mark.long]


@pytest.mark.parametrize("target", ["log", pytest.param("memory", marks=LONG)])
@pytest.mark.parametrize(
    ("partitions", "per_send", "message", "delivery", "to"),
    [
        pytest.param(1, 1000, Message(bytes(20)), {}, {}, id="20 bytes", marks=LONG),
        pytest.param(1, 1000, Message(bytes(100)), {}, {}, id="100 bytes", marks=pytest.mark.thorough),
        pytest.param(1, 1000, Message(bytes(100), PROPERTIES), {}, {}, id="100 bytes and properties", marks=LONG),
        pytest.param(1, 1000, Message(bytes(100)), {}, EDIT, id="edited", marks=LONG),
        pytest.param(1, 500, Message(bytes(1024)), {}, {}, id="1 KiB", marks=LONG),
        pytest.param(1, 1, Message(bytes(100)), {}, {}, id="one by one", marks=LONG),
        pytest.param(1, 1, Message(bytes(4 << 20)), {}, {}, id="4 MiB", marks=LONG),
        pytest.param(
            300,
            8,
            Message(bytes(64_000)),
            {"in_flight_bytes": "1MiB"},
            {},
            id="300 partitions at 1 MiB",
            marks=pytest.mark.thorough,
        ),
        pytest.param(300, 8, Message(bytes(64_000)), {}, {}, id="300 partitions", marks=LONG),
    ],
)
async def test_resident_memory(
    tmp_path: Path, target: str, partitions: int, per_send: int, message: Message, delivery: dict[str, Any], to: dict[str, Any]
) -> None:
    size = len(message.payload or b"") + sum(len(name) + len(value) for name, value in message.properties) + 16
    total = max(ENOUGH_BYTES // size, partitions * per_send)
    await filled(tmp_path / "a.db", partitions=partitions, per_send=per_send, message=message, total=total)
    held = measure(tmp_path, target="log" if to else target, delivery=delivery, to=to)  # the memory keeps edited messages as such
    assert held["resident_mb"] < LIMIT_MB, held


@pytest.mark.thorough
@pytest.mark.long
async def test_resident_memory_of_dead_letters(tmp_path: Path) -> None:
    message = Message(bytes(100))
    await filled(tmp_path / "a.db", partitions=1, per_send=1000, message=message, total=ENOUGH_BYTES // 116)
    held = measure(tmp_path, target="refusing", delivery=LETTERS, to={})
    assert held["resident_mb"] < LETTERS_LIMIT_MB, held


def measure(folder: Path, **case: Any) -> dict[str, Any]:
    arguments = json.dumps({"source": str(folder / "a.db")} | case)
    command = [sys.executable, "-m", "tests.gateway.full_gateway", arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    held: dict[str, Any] = json.loads(done.stdout)
    print(case, held)  # with -s: the figures
    return held
