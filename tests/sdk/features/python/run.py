"""One run of a feature's program: its options, its client, and what every feature needs of both."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pulsar

RECEIVE_MS = 30_000
QUIET_MS = 1_500
"""If no message arrives in this time, no further one is expected."""
POLL_MS = 100
MAX_POLLS = 600

Outcome = dict[str, Any]
Feature = Callable[["Run"], Outcome]


class Run:
    """The options of the run, a client, and short forms of its calls. Topics are the run's own, by a suffix."""

    def __init__(self, options: Namespace) -> None:
        self.keys: str = options.keys
        self.base: str = options.topic
        self._options = options
        self.client = self.new_client()

    def new_client(self) -> pulsar.Client:
        """Return a client with connections of its own. The library logs to stdout unless told otherwise."""
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr")
        return pulsar.Client(self._options.url, listener_name=self._options.listener or None, logger=logger)

    def topic(self, suffix: str = "") -> str:
        return f"{self.base}{suffix}"

    def producer(self, suffix: str = "", **settings: Any) -> pulsar.Producer:
        return self.client.create_producer(self.topic(suffix), **settings)

    def send(self, values: Iterable[object], suffix: str = "", **settings: Any) -> list[pulsar.MessageId]:
        """Send texts, each in an entry of its own unless the settings say otherwise; return their ids."""
        producer = self.producer(suffix, **settings)
        ids = [producer.send(str(value).encode()) for value in values]
        producer.close()
        return ids

    def send_batch(self, values: Sequence[object], suffix: str = "", **settings: Any) -> list[pulsar.MessageId]:
        """Send texts as one batch; return their ids."""
        producer = self.producer(suffix, **one_batch(len(values)), **settings)
        ids: list[pulsar.MessageId] = []
        for value in values:
            producer.send_async(str(value).encode(), lambda _, message_id: ids.append(message_id))
        producer.flush()
        producer.close()
        return ids

    def consumer(self, suffix: str = "", *, name: str = "s", **settings: Any) -> pulsar.Consumer:
        """Subscribe from the earliest message, unless the settings say otherwise."""
        settings = {"initial_position": pulsar.InitialPosition.Earliest, **settings}
        return self.client.subscribe(self.topic(suffix), name, **settings)

    def ask(self, action: str) -> None:
        """Let the harness do something, and wait until it has done it."""
        print(json.dumps({"do": action}), flush=True)
        sys.stdin.readline()


def one_batch(count: int) -> dict[str, Any]:
    """Settings of a producer that sends `count` messages as one batch."""
    return {"batching_enabled": True, "batching_max_messages": count, "batching_max_publish_delay_ms": 10_000}


def receive(consumer: pulsar.Consumer, count: int, *, acknowledge: bool = False) -> list[pulsar.Message]:
    """Receive so many messages."""
    messages = []
    for _ in range(count):
        messages.append(consumer.receive(RECEIVE_MS))
        if acknowledge:
            consumer.acknowledge(messages[-1])
    return messages


def rest(consumer: pulsar.Consumer) -> list[pulsar.Message]:
    """Receive until nothing more arrives, and acknowledge it."""
    messages = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            messages.append(consumer.receive(QUIET_MS))
            consumer.acknowledge(messages[-1])
    return messages


def gather(consumers: Sequence[pulsar.Consumer], count: int) -> list[list[str]]:
    """Receive and acknowledge `count` messages by all of these consumers together; return the values that each received."""
    values: list[list[str]] = [[] for _ in consumers]
    for _ in range(MAX_POLLS):
        for consumer, mine in zip(consumers, values, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(POLL_MS)
                mine.append(text(message))
                consumer.acknowledge(message)
        if sum(map(len, values)) >= count:
            break
    for consumer, mine in zip(consumers, values, strict=True):
        mine.extend(texts(rest(consumer)))
    return values


def are_all(values: Iterable[Iterable[object]], count: int) -> bool:
    """Return True if these are the numbers from 0 to `count` - 1, each once."""
    return sorted(int(str(value)) for each in values for value in each) == list(range(count))


def text(message: pulsar.Message) -> str:
    return message.data().decode()


def texts(messages: Iterable[pulsar.Message]) -> list[str]:
    return [text(message) for message in messages]


def ids(messages: Iterable[pulsar.Message]) -> list[pulsar.MessageId]:
    return [message.message_id() for message in messages]


def main(features: dict[str, Feature]) -> None:
    """Run the feature that the command line names, and print its outcome."""
    parser = ArgumentParser()
    for name in ("url", "feature", "topic", "listener", "keys"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    run = Run(options)
    outcome = features[options.feature](run)
    print(json.dumps({"outcome": outcome}), flush=True)
    run.client.close()
