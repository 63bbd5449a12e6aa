"""The real servers of the bench as sources and targets: what fills them, and how both bridges are told where they are."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.config import RocketMQCluster
from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import encode_element
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.e2e.sides import Side
from tests.e2e.support import fill, opened
from tests.kit.oracle import TYPES, body
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import APP, LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import OPERATES, Lock
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import LockedTubeMQ

T = TypeVar("T")

PARTITIONS = 8
BATCH = 500
WINDOW = 4
"""Batches on the way per partition while filling."""
BORN = 1_795_219_034_805
PULL_LIMITS = {
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInMemory": 1 << 20,
    "maxTransferBytesOnMessageInDisk": 1 << 20,
}
"""A Broker as shipped gives 32 messages per pull, on disk 8: who moves much raises these, for Java as for us."""
_fresh = itertools.count(1)


@dataclass(frozen=True)
class LockedSide(Side):
    """A cluster with TLS and authentication; TubeMQ's has TLS alone, since official clients cannot do what it asks for."""

    @property
    def settings(self) -> dict[str, Any]:
        """With the keys that let the gateway in."""
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
    """Of a locked RocketMQ."""
    assert server.lock is not None
    return server.lock


@contextlib.contextmanager
def running(system: str, topics: int, *, locked: bool = False) -> Iterator[Side]:
    """A cluster of a system, with room for so many topics."""
    match system:
        case "tubemq" if locked:
            with LockedTubeMQ(pool={PARTITIONS: topics}, memory_store=False, authenticates=False) as server:
                yield LockedSide(system, server, 0)
        case "pulsar" if locked:
            with LockedPulsar(heap_mb=1024) as pulsar:
                yield LockedSide(system, pulsar, 0)
        case "rocketmq" if locked:
            with RocketMQ(PULL_LIMITS, heap_mb=1024, locked=True) as rocketmq:
                yield LockedSide(system, rocketmq, 0)
        case "tubemq":
            # Without the memory store no send is answered 419, and what is read comes from files, as in a backfill.
            with TubeMQ(pool={PARTITIONS: topics}, memory_store=False) as server:
                yield Side(system, server, 0)
        case "pulsar":
            with Pulsar(heap_mb=1024) as pulsar:
                yield Side(system, pulsar, 0)
        case _:
            with RocketMQ(PULL_LIMITS, heap_mb=1024) as rocketmq:
                yield Side(system, rocketmq, 0)


def take_topic(side: Side) -> str:
    """A fresh topic with PARTITIONS partitions."""
    if isinstance(side.server, Pulsar):
        return side.server.create_topic(f"bench-{next(_fresh)}", PARTITIONS)
    return side.take_topic(PARTITIONS)


def java_arguments(source: Side, target: Side) -> dict[str, Any]:
    """How JavaBridge is told where both ends are."""
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
    """What the Java bridge's machine is told of RocketMQ's certificates."""
    servers = {id(each.server): each.server for each in (source, target)}.values()
    return [flag for server in servers if isinstance(server, RocketMQ) and server.lock for flag in server.lock.java_options]


def fill_topic(side: Side, topic: str, total: int, size: int) -> None:
    """`total` messages of `size` bytes with five properties, as the system's own producers would write them."""
    asyncio.run(_fill(side, topic, total // PARTITIONS, size))


async def _fill(side: Side, topic: str, count: int, size: int) -> None:
    match side.server:
        case TubeMQ():
            await fill(side.server, topic, [count] * PARTITIONS, size)
        case Pulsar():
            await _fill_pulsar(side, topic, count, size)
        case RocketMQ():
            await _fill_rocketmq(side.server, topic, count, size)


def pairs(partition: int, number: int) -> tuple[tuple[str, str], ...]:
    """Five properties: some that repeat, some that do not."""
    return (
        ("seq", str(number)),
        ("part", str(partition)),
        ("name", "grün"),
        ("trace", f"{partition:02x}{number:014x}"),
        ("zone", "eu-1"),
    )


async def _fill_pulsar(side: Side, topic: str, count: int, size: int) -> None:
    async with opened(side.system, side.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))

        async def one(partition: int) -> None:
            waiting: deque[asyncio.Future[Any]] = deque()
            for start in range(0, count, BATCH):
                batch = [_message(partition, number, size) for number in range(start, min(start + BATCH, count))]
                waiting.append(outbound.send(partition, Share(Batch.of(batch))))
                if len(waiting) >= WINDOW:
                    await waiting.popleft()
            await asyncio.gather(*waiting)

        await asyncio.gather(*map(one, range(PARTITIONS)))
        await outbound.close()


def _message(partition: int, number: int, size: int) -> Message:
    return Message(body(partition, number, size), pairs(partition, number), key=f"key-{number % 1000}", event_time=BORN + number)


async def _fill_rocketmq(server: RocketMQ, topic: str, count: int, size: int) -> None:
    batches = [
        [[(partition, n) for n in range(start, min(start + BATCH, count))] for start in range(0, count, BATCH)]
        for partition in range(PARTITIONS)
    ]
    await store_elements(
        server, topic, batches, lambda one, unique_key: encode_element(body(*one, size), _native(*one, unique_key), 0)
    )


async def store_elements(
    server: RocketMQ, topic: str, batches: Sequence[Sequence[Sequence[T]]], element: Callable[[T, str], bytes]
) -> None:
    """Store batches in each queue of a topic by our client, below the mapping: nothing of the gateway's own is in the messages.

    `element` makes the bytes of one message from what stands for it and a unique key.
    """
    client = RocketmqClient([server.name_server], **_keys(server))
    await client.connect()
    producer = client.producer("bench", topic)
    route = await client.routes.get(topic)
    assert route is not None

    async def one(queue: Queue, of_queue: Sequence[Sequence[T]]) -> None:
        for batch in of_queue:
            elements = b"".join(element(each, client.unique_id()) for each in batch)
            await producer.send_batch(queue, elements, len(batch), BORN)

    await asyncio.gather(*map(one, route.write_queues(), batches))
    await producer.close()
    await client.close()


def _keys(server: RocketMQ) -> dict[str, Any]:
    if server.lock is None:
        return {}
    found = RocketMQCluster.model_validate({"name_servers": server.name_server, **server.lock.settings(OPERATES)})
    assert found.tls is not None
    assert found.auth is not None
    return {"tls": found.tls.make("bench"), "credentials": found.auth.make()}


def _native(partition: int, number: int, unique_key: str) -> bytes:
    return properties.encode(native_pairs(partition, number, unique_key))


def native_pairs(partition: int, number: int, unique_key: str) -> list[tuple[str, str]]:
    """What a RocketMQ message says, in the order of the Java clients: a tag, a key of a thousand, five properties."""
    own = [("UNIQ_KEY", unique_key), ("KEYS", f"key-{number % 1000}"), ("TAGS", TYPES[number % 3])]
    return [*own, *pairs(partition, number)]
