"""The real servers of the benchmark as sources and targets: how they are filled, and how both bridges are configured."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.bench.corpora import Corpus
from tests.e2e.sides import Side
from tests.kit import java
from tests.kit.maven import say
from tests.kit.oracle import TYPES
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import APP, LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import OPERATES, Lock
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import LockedTubeMQ

T = TypeVar("T")

PARTITIONS = 8
TOPICS = 8
SEED = 14
FILL_DEADLINE_S = 300
DELAYED_S = 60
BATCH = 500
WINDOW = 4
"""Batches in flight per partition while a topic is filled."""
BORN = 1_795_219_034_805
PULL_LIMITS = {
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInMemory": 1 << 20,
    "maxTransferBytesOnMessageInDisk": 1 << 20,
}
"""Limits of messages per pull, raised for both bridges: by default a Broker returns 32, and 8 from disk."""
_fresh = itertools.count(1)


@dataclass(frozen=True)
class LockedSide(Side):
    """A cluster with TLS and authentication; TubeMQ's has TLS alone, since official clients cannot do what it asks for."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return the cluster's configuration with certificates and credentials."""
        found = Side(self.system, self.server, 0).settings
        match self.server:
            case LockedTubeMQ():
                return found | self.server.keys
            case LockedPulsar():
                return self.server.config_of(APP)
            case RocketMQ():
                keys = lock_of(self.server).settings(OPERATES)
                return found | keys | {"tls": {name: str(path) for name, path in keys["tls"].items()}}
        raise AssertionError(f"{self.system} is not locked")


def lock_of(server: RocketMQ) -> Lock:
    """Return the certificates and users of a locked RocketMQ."""
    assert server.lock is not None
    return server.lock


@contextlib.contextmanager
def running(system: str, topics: int = TOPICS, *, locked: bool = False, raised: bool = True) -> Iterator[Side]:
    """Run a cluster with `topics` topics in stock; `raised`: with raised pull limits, for RocketMQ."""
    limits = PULL_LIMITS if raised else {}
    match system:
        case "tubemq" if locked:
            with LockedTubeMQ(pool={PARTITIONS: topics}, memory_store=False, authenticates=False) as server:
                yield LockedSide(system, server, 0)
        case "pulsar" if locked:
            with LockedPulsar(heap_mb=1024, java_options=()) as pulsar:
                yield LockedSide(system, pulsar, 0)
        case "rocketmq" if locked:
            with RocketMQ(limits, heap_mb=1024, locked=True) as rocketmq:
                yield LockedSide(system, rocketmq, 0)
        case "tubemq":
            # Without the memory store no send gets error 419, and messages are read from files, as in a backfill.
            with TubeMQ(pool={PARTITIONS: topics}, memory_store=False) as server:
                yield Side(system, server, 0)
        case "pulsar":
            with Pulsar(heap_mb=1024, java_options=()) as pulsar:
                yield Side(system, pulsar, 0)
        case _:
            with RocketMQ(limits, heap_mb=1024) as rocketmq:
                yield Side(system, rocketmq, 0)


class Clusters:
    """The clusters of a run: each is started on first use, and all are stopped at the end."""

    def __init__(self, *, locked: bool = False) -> None:
        self._locked = locked
        self._stack = contextlib.ExitStack()
        self._sides: dict[tuple[str, bool], Side] = {}

    def side(self, system: str, *, raised: bool = True) -> Side:
        """Return the cluster of a system; there are two of RocketMQ, with raised and with default pull limits."""
        key = (system, raised or system != "rocketmq")
        if key not in self._sides:
            say(f"starting {system}")
            self._sides[key] = self._stack.enter_context(running(system, locked=self._locked, raised=raised))
        return self._sides[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def take_topic(side: Side, partitions: int = PARTITIONS) -> str:
    """Return a new topic, which keeps its messages: a route does not write to a topic of Pulsar without subscription."""
    if isinstance(side.server, Pulsar):
        return side.server.keep(side.server.create_topic(f"bench-{next(_fresh)}", partitions))
    return side.take_topic(partitions)


def java_arguments(source: Side, target: Side) -> dict[str, Any]:
    """Return the arguments of JavaBridge for both clusters."""
    found: dict[str, Any] = {"source": source.system, "sink": target.system}
    for each in (source, target):
        match each.server:
            case LockedTubeMQ():
                found["master"] = each.server.open_masters
            case TubeMQ():
                found["master"] = each.server.masters
            case LockedPulsar():
                found |= {"url": each.server.service_url, "authorities": str(each.server.authority.certificate)}
                found["token"] = each.server.token(APP)
            case Pulsar():
                found["url"] = each.server.service_url
            case RocketMQ():
                found["name_servers"] = each.server.name_server
                if each.server.lock is not None:
                    found |= {"tls": True, "access_key": OPERATES.name, "secret_key": OPERATES.secret}
    return found


def java_flags(source: Side, target: Side) -> list[str]:
    """Return the JVM flags of the Java bridge for RocketMQ's certificates."""
    servers = {id(each.server): each.server for each in (source, target)}.values()
    return [flag for server in servers if isinstance(server, RocketMQ) and server.lock for flag in server.lock.java_options]


def fill_topic(side: Side, corpus: Corpus, total: int, seed: int = SEED) -> str:
    """Write `total` messages of a corpus to a new topic with the official Java client, and return its name."""
    topic = take_topic(side, corpus.partitions)
    where = {name: value for name, value in java_arguments(side, side).items() if name != "source"}
    java.run(
        "BenchFill",
        flags=[*java.BRIDGE_FLAGS, *java_flags(side, side)],
        deadline_s=FILL_DEADLINE_S,
        topic=topic,
        messages=total,
        seed=seed,
        **where,
        **corpus.arguments(side.system),
    )
    if isinstance(side.server, RocketMQ):
        _wait_stored(side.server, topic, total)
    return topic


def _wait_stored(server: RocketMQ, topic: str, total: int) -> None:
    """Wait until the queues have all messages; delayed ones are stored a second later."""
    deadline = time.monotonic() + DELAYED_S
    while (count := server.message_count(topic)) < total:
        if time.monotonic() > deadline:
            raise AssertionError(f"{topic} has {count:,} of {total:,} messages")
        time.sleep(0.2)


def pairs(partition: int, number: int) -> tuple[tuple[str, str], ...]:
    """Return five properties; some have the same value in all messages."""
    return (
        ("seq", str(number)),
        ("part", str(partition)),
        ("name", "grün"),
        ("trace", f"{partition:02x}{number:014x}"),
        ("zone", "eu-1"),
    )


async def store_elements(
    server: RocketMQ, topic: str, batches: Sequence[Sequence[Sequence[T]]], element: Callable[[T, str], bytes]
) -> None:
    """Store batches in each queue of a topic by our client, below the mapping: nothing of the gateway's own is in the messages.

    `element` returns the bytes of one message, given an item of a batch and a unique key.
    """
    client = ClusterClient([server.name_server])
    await client.connect()
    producer = client.producer("bench", topic)
    route = await client.routes.get(topic)
    assert route is not None

    async def store_queue(queue: Queue, of_queue: Sequence[Sequence[T]]) -> None:
        for batch in of_queue:
            elements = b"".join(element(each, client.unique_id()) for each in batch)
            await producer.send_batch(queue, elements, len(batch), BORN)

    await asyncio.gather(*map(store_queue, route.write_queues(), batches))
    await producer.close()
    await client.close()


def native_pairs(partition: int, number: int, unique_key: str) -> list[tuple[str, str]]:
    """Return the properties of a message in the order of the Java clients: id, one of 1,000 keys, tag, five user properties."""
    own = [("UNIQ_KEY", unique_key), ("KEYS", f"key-{number % 1000}"), ("TAGS", TYPES[number % 3])]
    return [*own, *pairs(partition, number)]
