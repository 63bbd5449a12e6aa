"""Publishes the quickstart's messages to a Pulsar listener: by the official Python SDK if it is installed, else by our client."""

import asyncio
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import mqbridge
from mqbridge.errors import DeliveryError
from mqbridge.message import Message
from mqbridge.net.tasks import spawn

MAX_PENDING = 5000
"""Number of messages that our own client has in flight."""
CHUNK_MESSAGES = 1000
"""Number of messages that are reported together."""
TIMEOUT_MS = 60_000
"""Time after which the official SDK gives a message up."""

ReportSent = Callable[[int], None]
"""A callback that receives the number of messages that were sent since its last call."""


def has_official_sdk() -> bool:
    """Return True if the official Python SDK can be imported."""
    return importlib.util.find_spec("pulsar") is not None


async def publish(url: str, topic: str, messages: Iterable[Message], report_sent: ReportSent) -> None:
    """Publish messages to one partition, in order, and wait until all are stored. Raises DeliveryError, ClusterError."""
    if has_official_sdk():
        await asyncio.to_thread(_publish_with_sdk, url, topic, messages, report_sent)
    else:
        await _publish_with_ours(url, topic, messages, report_sent)


def _publish_with_sdk(url: str, topic: str, messages: Iterable[Message], report_sent: ReportSent) -> None:
    import pulsar

    failures: list[str] = []

    def on_sent(result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(str(result))

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True, send_timeout_millis=TIMEOUT_MS)
        for number, message in enumerate(messages, 1):
            assert message.key is None or isinstance(message.key, str)  # noqa: S101 - the SDK has only text
            producer.send_async(
                message.payload or b"",
                on_sent,
                properties=dict(message.properties),
                partition_key=message.key,
                event_timestamp=message.event_time,
            )
            if number % CHUNK_MESSAGES == 0:
                report_sent(CHUNK_MESSAGES)
        producer.flush()
        producer.close()
    finally:
        client.close()
    if failures:
        raise DeliveryError(f"{len(failures)} messages were not stored in {topic}, the first because of {failures[0]}")


async def _publish_with_ours(url: str, topic: str, messages: Iterable[Message], report_sent: ReportSent) -> None:
    async with mqbridge.PulsarClient(url) as client, client.producer(topic) as producer:
        pending: set[asyncio.Task[Any]] = set()
        for number, message in enumerate(messages, 1):
            sending = producer.send(
                message.payload, key=message.key, properties=message.properties, event_time=message.event_time
            )
            pending.add(spawn(sending, "send"))
            if len(pending) >= MAX_PENDING:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if number % CHUNK_MESSAGES == 0:
                report_sent(CHUNK_MESSAGES)
        await asyncio.gather(*pending)
