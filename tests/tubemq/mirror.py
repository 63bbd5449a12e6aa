"""A gateway from one topic of a real TubeMQ to the embedded log, and what both ends hold."""

import asyncio
import base64
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mqbridge import TubeMQClient
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.reading import read
from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.conversation import until
from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import fresh_group

HEARTBEAT_S = 1
POLL_S = 0.25
TARGET = "copy"
BUSY_TIMEOUT = "300ms"
"""How long the gateway waits for the lock of its target before a send fails."""


class Mirror:
    """The configuration of a gateway that copies `topic` to an embedded log in `folder`, and its instances.

    `admin` configures the Master's web address, `state` the gateway's checkpoints. `further` are more options of the source,
    `delivery` those of the delivery.
    """

    def __init__(
        self,
        tubemq: TubeMQ,
        topic: str,
        folder: Path,
        *,
        admin: bool = True,
        state: bool = True,
        heartbeat: str = f"{HEARTBEAT_S}s",
        shutdown_timeout: str = "5s",
        further: Mapping[str, Any] | None = None,
        delivery: Mapping[str, Any] | None = None,
    ) -> None:
        self.tubemq, self.topic, self.group = tubemq, topic, fresh_group()
        self.partitions = tubemq.topics[topic]
        self.target = folder / "target.db"
        self._folder, self._state, self._instances, self._finishes = folder, state, Counter[str](), 0
        source = {"cluster": "tube", "topic": topic, "group": self.group, **(further or {})}
        address = {"admin_url": tubemq.admin_url} if admin else {}
        self._config: dict[str, Any] = {
            "clusters": {
                "tube": {"system": "tubemq", "masters": tubemq.masters, "heartbeat": heartbeat, **address},
                "target": {"system": "log", "path": str(self.target), "busy_timeout": BUSY_TIMEOUT},
            },
            "routes": [
                {"name": "r", "from": source, "to": {"cluster": "target", "topic": TARGET}, "delivery": dict(delivery or {})}
            ],
            "shutdown_timeout": shutdown_timeout,
        }

    def gateway(self, name: str = "a", *options: str, network: Network | None = None) -> GatewayProcess:
        """Start the instance `name`, which has its own log and checkpoints; use the result in a `with` statement."""
        self._instances[name] += 1
        folder = self._folder / f"{name}{self._instances[name]}"
        state = {"state": str(self._folder / f"{name}.db")} if self._state else {}
        return GatewayProcess(self._config | state, folder, *options, network=network)

    def configure(self, *, state: bool | None = None, **delivery: Any) -> None:
        """Change the configuration of the instances that start from now on."""
        self._state = self._state if state is None else state
        self._config["routes"][0]["delivery"] = delivery

    @contextlib.contextmanager
    def target_away(self) -> Iterator[None]:
        """Hold the write lock of the target, so that every send of the gateway fails."""
        lock = sqlite3.connect(self.target, isolation_level=None, timeout=SERVER_PATIENCE_S)
        try:
            lock.execute("BEGIN IMMEDIATE")
            yield
        finally:
            lock.close()

    async def stored(self) -> list[bytes]:
        """Return the payloads that the target holds, repeats included; none before the gateway has created the topic."""
        if not self.target.exists():
            return []
        found: list[bytes] = []
        async with opened("log", {"path": str(self.target)}) as cluster:
            if await cluster.describe(TARGET) is not None:
                for name, bounds in (await cluster.bounds(TARGET)).items():
                    found += await _payloads(cluster, TARGET, name, bounds)
        return found

    async def wait_stored(self, payloads: Iterable[bytes], *gateways: GatewayProcess) -> None:
        """Wait until the target holds these payloads; fail if a gateway stops a partition, or ends."""
        missing = set(payloads)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while missing := missing - set(await self.stored()):
                for gateway in gateways:
                    await assert_runs(gateway, f"{len(missing)} messages are missing, such as {min(missing)!r}")
                await asyncio.sleep(POLL_S)

    async def finish(self, *gateways: GatewayProcess) -> list[bytes]:
        """Send one more message to each partition, and wait until the target holds it: then all before it have been read.

        Return these messages.
        """
        self._finishes += 1
        last = {partition: [b"last of %d, %d" % (partition, self._finishes)] for partition in range(self.partitions)}
        await send(self.tubemq, self.topic, last)
        expected = [payload for payloads in last.values() for payload in payloads]
        await self.wait_stored(expected, *gateways)
        return expected

    async def bounds(self) -> dict[str, Bounds]:
        """Return the offsets of the first and of the next message, by partition name."""
        async with self._source() as cluster:
            return dict(await cluster.bounds(self.topic))

    async def committed(self) -> dict[str, Position]:
        """Return the group's positions at the Broker, by partition name."""
        async with self._source() as cluster:
            return dict(await cluster.committed(self.topic, self.group))

    async def wait_caught_up(self) -> None:
        """Wait until the group's position is the end of every partition.

        A get that finds nothing moves the position past the messages of other partitions of the same store.
        """

        async def at_end() -> bool:
            bounds, committed = await self.bounds(), await self.committed()
            return all(name in committed and committed[name][0] == each.next[0] for name, each in bounds.items())

        await wait_for(at_end)

    def _source(self) -> contextlib.AbstractAsyncContextManager[Cluster]:
        return opened("tubemq", {"masters": self.tubemq.masters, "admin_url": self.tubemq.admin_url})


def numbered(name: str, count: int, size: int = 0) -> list[bytes]:
    """Return `count` payloads of at least `size` bytes that sort in the order of sending."""
    return [f"{name} {number:05}".ljust(size, ".").encode() for number in range(count)]


async def _payloads(cluster: Cluster, topic: str, partition: str, bounds: Bounds) -> list[bytes]:
    async with contextlib.aclosing(read(cluster, topic, partition, bounds.first, bounds.next)) as batches:
        return [message.payload or b"" async for batch in batches for message in batch.messages]


async def wait_for(condition: Any) -> None:
    """Wait until an asynchronous condition is true."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not await condition():
            await asyncio.sleep(POLL_S)


async def assert_runs(gateway: GatewayProcess, problem: str) -> None:
    """Fail if the gateway has ended or has stopped a partition."""
    assert gateway.process.poll() is None, f"the gateway ended with {gateway.process.returncode}: {problem}\n{gateway.log}"
    stopped = (await asyncio.to_thread(gateway.route)).get("stopped")
    assert not stopped, f"{problem}; stopped: {stopped}"


async def wait_assigned(gateway: GatewayProcess, partitions: int) -> None:
    """Wait until the gateway reads this number of partitions."""
    await wait_route(gateway, lambda route: len(route.get("lanes", ())) + len(route.get("stopped", ())) >= partitions)


async def wait_route(gateway: GatewayProcess, holds: Any) -> None:
    """Wait until a condition of the gateway's route is true."""

    async def condition() -> bool:
        assert gateway.process.poll() is None, gateway.log
        return bool(holds(await asyncio.to_thread(gateway.route)))

    await wait_for(condition)


async def wait_pack_out(gateway: GatewayProcess, messages: int) -> None:
    """Wait until the gateway has received messages that it cannot store."""
    await wait_route(gateway, lambda route: route.get("in_flight_messages", 0) >= messages)


async def send(tubemq: TubeMQ, topic: str, payloads: Mapping[int, Iterable[bytes]], msg_type: str | None = None) -> None:
    """Send payloads in order to each partition of the first Broker."""
    async with TubeMQClient(f"tubemq://{tubemq.masters}") as client, client.producer(topic) as producer:
        sends = [
            producer.send(payload, partition=f"1:{partition}", msg_type=msg_type)
            for partition, each in payloads.items()
            for payload in each
        ]
        await asyncio.gather(*sends)


@contextlib.asynccontextmanager
async def round_robin(tubemq: TubeMQ, topic: str, per_second: float = 4.0) -> AsyncIterator[list[bytes]]:
    """Send a few messages per second to the partitions in turn; yield the payloads that the Broker has acknowledged."""
    sent: list[bytes] = []
    partitions = tubemq.topics[topic]

    async def run() -> None:
        async with TubeMQClient(f"tubemq://{tubemq.masters}") as client, client.producer(topic) as producer:
            while True:
                payload = b"%s %06d" % (name, len(sent))
                await producer.send(payload, partition=f"1:{len(sent) % partitions}")
                sent.append(payload)
                await asyncio.sleep(1 / per_second)

    name = fresh_group().encode()
    task = asyncio.ensure_future(run())
    try:
        yield sent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def held(tubemq: TubeMQ, topic: str, last: Iterable[bytes]) -> set[bytes]:
    """Return what the official client reads from the beginning of a topic, until it has read the `last` messages."""
    awaited = set(last)
    found: set[bytes] = set()

    def complete(program: java.JavaProgram) -> bool:
        assert program.running, program.stderr()
        found.update(base64.b64decode(line["body"]) for line in program.lines() if "body" in line)
        return awaited <= found

    with await asyncio.to_thread(java.spawn, "TubeConsume", master=tubemq.masters, topic=topic, group=fresh_group()) as program:
        await until(lambda: complete(program), patience_s=SERVER_PATIENCE_S, pause_s=POLL_S)
    return found
