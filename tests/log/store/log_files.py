"""Log files for tests: written as a gateway writes them, then damaged."""

import asyncio
import os
import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from mqbridge.adapter import reading
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import GapError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.registration import ADAPTER
from mqbridge.message import Batch, Message, Share
from tests.log.conftest import lane_of

HEADER_BYTES = 100
"""Bytes of a file without which SQLite does not know it as a database."""
Stored = dict[tuple[str, int, int], bytes]
"""Payloads of the messages of a log, by topic, partition and offset."""


def no_report(_: str) -> None:
    """Ignore the progress of a job."""


async def open_cluster(path: Path, **settings: object) -> LogCluster:
    cluster = LogCluster("log", ADAPTER.cluster_model(path=path, **({"synchronous": "normal"} | settings)))
    await cluster.connect()
    return cluster


def write_log(
    path: Path, *, topics: Mapping[str, int] | None = None, sends: int = 120, seed: int = 1, size: int = 2000
) -> Stored:
    """Send batches of random sizes to all partitions, commit a group's offsets, close the log; return what was acknowledged."""
    return asyncio.run(_write_log(path, topics or {"orders": 3, "events": 1}, sends, random.Random(seed), size))


async def _write_log(path: Path, topics: Mapping[str, int], sends: int, chance: random.Random, size: int) -> Stored:
    stored: Stored = {}
    cluster = await open_cluster(path)
    outbounds = {}
    for topic, count in topics.items():
        await cluster.create(topic, count)
        outbounds[topic] = await cluster.outbound(OutboundSpec(topic))
    for _ in range(sends):
        topic = chance.choice(list(topics))
        partition = chance.randrange(topics[topic])
        payloads = [chance.randbytes(chance.randrange(size)) for _ in range(chance.randrange(1, 40))]
        receipt = await outbounds[topic].send(partition, Share(Batch.of([Message(payload) for payload in payloads])))
        assert not receipt.failures
        for position, payload in zip(receipt.positions, payloads, strict=True):
            stored[topic, partition, position[0]] = payload
    inbound, _ = await lane_of(cluster, "g", next(iter(topics)))
    await inbound.close()
    await cluster.close()
    return stored


def read_log(path: Path, **settings: object) -> Stored:
    """Return all messages that can be read, past all gaps."""
    return asyncio.run(_read_log(path, settings))


async def _read_log(path: Path, settings: Mapping[str, object]) -> Stored:
    stored: Stored = {}
    cluster = await open_cluster(path, **settings)
    try:
        for topic in await cluster.topics():
            for partition, bounds in (await cluster.bounds(topic)).items():
                position = bounds.first
                while position < bounds.next:
                    try:
                        async for batch in reading.read(cluster, topic, partition, position, bounds.next):
                            for message in batch.messages:
                                assert message.payload is not None
                                stored[topic, int(partition), message.position[0]] = message.payload
                            position = (batch.messages[-1].position[0] + 1,)
                        position = bounds.next
                    except GapError as gap:
                        position = gap.resume or bounds.next
    finally:
        await cluster.close()
    return stored


def flip(path: Path, at: int, count: int = 1) -> None:
    """Change bytes of a file that no process has open."""
    fd = os.open(path, os.O_RDWR)
    data = os.pread(fd, count, at)
    os.pwrite(fd, bytes(byte ^ 0x55 for byte in data), at)
    os.close(fd)


def change(path: Path, *statements: str) -> None:
    """Run SQL on the file, without the checksums of a log."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def hide_batches(path: Path, condition: str) -> None:
    """Remove the entries of batches that do not meet the condition from the index by which messages are read."""
    change(
        path,
        "DROP INDEX batch_base",
        f"CREATE UNIQUE INDEX batch_base ON batch (partition, base) WHERE {condition}",
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET sql = 'CREATE UNIQUE INDEX batch_base ON batch (partition, base)' WHERE name = 'batch_base'",
    )
