"""One run of one of our clients in its own process: `python -m tests.bench.client_runs '{"run": ..., "topic": ...}'`.

Prints a JSON line with rate, cpuSecondsPerMillion and peakRssBytes, as the Java programs do: from the moment when a warm-up share
of the messages is through until the last one is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from mqbridge.errors import LaneRevoked
from mqbridge.message import Message
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.cluster_client import ClusterClient as PulsarClusterClient
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.library.batching import Batching
from mqbridge.pulsar.library.topic_consumer import open_topic_consumer
from mqbridge.pulsar.library.topic_producer import open_topic_producer
from mqbridge.pulsar.mapping.request import Limits, encode
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.name_server_address import parse_name_servers
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import join
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.producer.send_result import SendResult
from mqbridge.tubemq.library.client import TubeMQClient
from mqbridge.tubemq.library.messages import decode_all

HEARTBEAT_S = 2.0


class Meter:
    """Counts messages, and measures from the end of the warm-up on."""

    def __init__(self, total: int, warmup: int) -> None:
        self.over = asyncio.Event()
        self.messages = 0
        self._total, self._warmup = total, warmup
        self._began: tuple[int, float, float] | None = None
        self.figures: dict[str, float] = {}

    def add(self, count: int) -> None:
        """Count messages; called once per batch."""
        self.messages += count
        if self._began is None and self.messages >= self._warmup:
            self._began = self.messages, time.monotonic(), time.process_time()
        elif self.messages >= self._total and self._began is not None and not self.figures:
            messages, began, cpu = self._began
            measured, seconds = self.messages - messages, time.monotonic() - began
            self.figures = {
                "rate": measured / seconds,
                "cpuSecondsPerMillion": (time.process_time() - cpu) / measured * 1e6,
                "peakRssBytes": peak_rss(),
            }
            self.over.set()


def peak_rss() -> int:
    """Return the peak resident memory of this process, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


Run = Callable[[dict[str, Any], Meter], Awaitable[None]]


# --- Pulsar -----------------------------------------------------------------------------------------------------------


async def pulsar_produce(settings: dict[str, Any], meter: Meter) -> None:
    """Send message by message; the client makes the batches."""
    client = pulsar_client(settings)
    batching = Batching(settings["batch_messages"], settings["batch_bytes"], settings["linger_ms"] / 1000)
    producer = await open_topic_producer(client, settings["topic"], batching=batching)
    body, waiting, window = bytes(settings["size"]), deque[asyncio.Future[Any]](), settings["window"]
    for _ in range(settings["messages"]):
        waiting.append(producer.send(body))
        if len(waiting) >= window:
            while len(waiting) > window // 2:
                await waiting.popleft()
            meter.add(window - window // 2)
    await producer.flush()
    meter.add(len(waiting))
    await producer.close()
    await client.close()


async def pulsar_produce_batches(settings: dict[str, Any], meter: Meter) -> None:
    """Send whole lists of messages to chosen partitions, like the gateway."""
    client = pulsar_client(settings)
    count = await client.partitions(settings["topic"])
    assert count
    producers = [client.producer(f"{settings['topic']}-partition-{index}") for index in range(count)]
    body, limits, each = (
        bytes(settings["size"]),
        Limits(settings["batch_messages"], settings["batch_bytes"]),
        settings["batch_bytes"] // settings["size"],
    )
    waiting: deque[tuple[int, asyncio.Future[Any]]] = deque()
    for number, start in enumerate(range(0, settings["messages"], each)):
        messages = [Message(body) for _ in range(min(each, settings["messages"] - start))]
        entries, failures = encode(messages, None, limits)
        assert not failures
        for entry in entries:
            sent = producers[number % count].send(entry.metadata, entry.payload, entry.count)
            waiting.append((entry.count, sent))
        if len(waiting) * each >= settings["window"]:
            while len(waiting) * each > settings["window"] // 2:
                stored, future = waiting.popleft()
                await future
                meter.add(stored)
    for stored, future in waiting:
        await future
        meter.add(stored)
    await asyncio.gather(*(producer.close() for producer in producers))
    await client.close()


async def pulsar_consume(settings: dict[str, Any], meter: Meter) -> None:
    """Receive entries of all partitions, with cumulative acknowledgement."""
    client = pulsar_client(settings)
    subscription = Subscription(settings["group"], Types.Failover)
    consumer = await open_topic_consumer(client, settings["topic"], subscription)
    size = 0
    while not meter.over.is_set():
        owner, entry = await consumer.receive()
        messages = decode_plain(entry)
        for message in messages:
            size += len(message.payload or b"")
        owner.acknowledge_up_to(entry.id)
        meter.add(len(messages))
    await consumer.close()
    await client.close()


def pulsar_client(settings: dict[str, Any]) -> PulsarClusterClient:
    """Return a client of the server under test."""
    return PulsarClusterClient(parse_service_url(settings["url"], tls=False))


# --- TubeMQ -----------------------------------------------------------------------------------------------------------


async def tubemq_produce(settings: dict[str, Any], meter: Meter) -> None:
    """Send a request per message to all partitions, round robin."""
    async with TubeMQClient(f"tubemq://{settings['master']}", heartbeat_s=HEARTBEAT_S) as client:
        sender = await client.load_balancing_sender(settings["topic"])
        body, left, room = bytes(settings["size"]), settings["messages"], asyncio.Event()
        window, fewest, pack, stored = settings["window"], settings["window"] // 2, 500, 0

        def done(result: object) -> None:
            nonlocal stored
            assert isinstance(result, SendResult), result
            stored += 1
            if stored == pack:
                stored = 0
                meter.add(pack)
            if sender.pending <= fewest:
                room.set()

        while left:
            room.clear()
            count = min(left, window - sender.pending)
            for _ in range(count):
                sender.submit(body, 0, None, None, done=done)
            left -= count
            await room.wait()
        await sender.flush()


async def tubemq_consume(settings: dict[str, Any], meter: Meter) -> None:
    """Packs of all partitions."""
    async with TubeMQClient(f"tubemq://{settings['master']}", heartbeat_s=HEARTBEAT_S) as client:
        consumer = await client.pack_consumer(settings["topic"], settings["group"])
        size = 0

        async def read(partition: HeldPartition) -> None:
            nonlocal size
            try:
                while True:
                    messages = decode_all((await partition.fetch()).messages)
                    for message in messages:
                        size += len(message.body)
                    partition.confirm()
                    meter.add(len(messages))
            except LaneRevoked:
                return

        await read_partitions(consumer.assignments(), read, meter)


async def read_partitions(partitions: Any, read: Callable[[Any], Any], meter: Meter) -> None:
    """Read every assigned partition in a task, until all messages have been read."""
    tasks: list[asyncio.Task[None]] = []

    async def accept() -> None:
        async for partition in partitions:
            task = spawn(read(partition), "bench reading")
            tasks.append(task)

    accepting = spawn(accept(), "bench parts")
    await meter.over.wait()
    await cancel(accepting, *tasks)


# --- RocketMQ ---------------------------------------------------------------------------------------------------------


async def rocketmq_produce(settings: dict[str, Any], meter: Meter) -> None:
    """Send batches to all queues, round robin."""
    async with ClusterClient(parse_name_servers(settings["name_servers"])) as client:
        producer = Producer(client.producer("bench", settings["topic"], in_flight_per_queue=2))
        body, batch, window = bytes(settings["size"]), settings["batch_messages"], settings["window"]
        left = settings["messages"] // batch

        async def send() -> None:
            nonlocal left
            while left:
                left -= 1
                await producer.send_batch([OutgoingMessage(body) for _ in range(batch)])
                meter.add(batch)

        await asyncio.gather(*(send() for _ in range(window)))
        await producer.close()


async def rocketmq_consume(settings: dict[str, Any], meter: Meter) -> None:
    """Read all queues as the only member of a group."""
    async with ClusterClient(parse_name_servers(settings["name_servers"])) as client:
        consumer = await join(client, ConsumerSettings(settings["group"], (everything(settings["topic"]),), retries=False))
        size = 0

        async def read(stream: AssignedQueue) -> None:
            nonlocal size
            try:
                while True:
                    pulled = await stream.receive()
                    for record in pulled.records:
                        size += len(record.body)
                    stream.commit(pulled.next)
                    meter.add(len(pulled.records))
            except LaneRevoked:
                return

        await read_partitions(consumer.assigned_queues(), read, meter)
        await consumer.close()


RUNS: dict[str, Run] = {
    "pulsar produce": pulsar_produce,
    "pulsar produce batches": pulsar_produce_batches,
    "pulsar consume": pulsar_consume,
    "tubemq produce": tubemq_produce,
    "tubemq consume": tubemq_consume,
    "rocketmq produce": rocketmq_produce,
    "rocketmq consume": rocketmq_consume,
}


async def main(settings: dict[str, Any]) -> None:
    """Run the measurement that `settings["run"]` names, and print its figures."""
    meter = Meter(settings["messages"], settings["warmup"])
    async with asyncio.timeout(settings["deadline_s"]):
        await RUNS[settings["run"]](settings, meter)
    print(json.dumps(meter.figures))


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
