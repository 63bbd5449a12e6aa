"""The structured strings inside the messages: brokers, topics, partitions, subscriptions.

    broker        id:host:port                                   the port is one space where it is the default
    topic         topic#id:partitions:stores[,...]#maxBytes      of a producer's heartbeat
    partition     id:host:port#topic:partition                   of a consumer's heartbeats to a Broker
    subscription  consumer@group#id:host:port#topic:partition    of events and of what a consumer reports
    failure       code:partition
    condition     topic#type[,type]                              a filter, as the Master is told it

Whatever cannot be read raises RemoteProtocolError.
"""

from collections.abc import Iterable
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError

DEFAULT_BROKER_PORT = 8123
STORE_STEP = 10_000
"""Partition i of store s has the id s * 10000 + i."""


class Broker(NamedTuple):
    """A Broker as the Master lists it."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}:{self.host}:{self.port}"


class PartitionRef(NamedTuple):
    """A partition and the Broker that it is on."""

    broker: Broker
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}#{self.topic}:{self.partition}"

    @property
    def name(self) -> str:
        """`broker:partition`, unique within the topic."""
        return f"{self.broker.id}:{self.partition}"

    @property
    def key(self) -> tuple[int, str, int]:
        """What it is known by wherever its Broker may be reached."""
        return self.broker.id, self.topic, self.partition


class TopicInfo(NamedTuple):
    """A topic as producers are told it: (broker id, partitions per store, stores) where it is deployed."""

    topic: str
    deployments: tuple[tuple[int, int, int], ...]
    max_message_bytes: int | None


def _bad(kind: str, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{text!r} is not a {kind}")


def parse_broker(text: str) -> Broker:
    """Read `id:host:port`."""
    try:
        number, rest = text.split(":", 1)
        host, port = rest.rsplit(":", 1)
        found = Broker(int(number), host, int(port) if port.strip() else DEFAULT_BROKER_PORT)
    except ValueError as error:
        raise _bad("broker", text) from error
    if not host or not 0 < found.port < 65536:
        raise _bad("broker", text)
    return found


def parse_partition(text: str) -> PartitionRef:
    """Read `id:host:port#topic:partition`."""
    try:
        broker, place = text.split("#")
        topic, partition = place.split(":")
        return PartitionRef(parse_broker(broker), topic, int(partition))
    except ValueError as error:
        raise _bad("partition", text) from error


def parse_subscription(text: str) -> PartitionRef:
    """Read the partition of `consumer@group#id:host:port#topic:partition`."""
    _, found, rest = text.partition("#")
    if not found:
        raise _bad("subscription", text)
    return parse_partition(rest)


def format_subscription(consumer: str, group: str, partition: PartitionRef) -> str:
    """The string that reports `partition` as held."""
    return f"{consumer}@{group}#{partition}"


def parse_failure(text: str) -> tuple[int, PartitionRef]:
    """Read `code:partition`."""
    code, _, rest = text.partition(":")
    try:
        return int(code), parse_partition(rest)
    except ValueError as error:
        raise _bad("partition failure", text) from error


def parse_topic_info(text: str) -> TopicInfo:
    """Read `topic#id:partitions:stores[,...]#maxBytes`; the last part may be missing."""
    topic, _, rest = text.partition("#")
    places, _, most = rest.partition("#")
    try:
        deployments = tuple(_deployment(place) for place in places.split(","))
        return TopicInfo(topic, deployments, int(most) if most.strip() else None)
    except ValueError as error:
        raise _bad("topic", text) from error


def _deployment(text: str) -> tuple[int, int, int]:
    broker, partitions, stores = text.split(":")
    return int(broker), int(partitions), int(stores)


def format_topic_info(info: TopicInfo) -> str:
    """The string that tells producers of a topic."""
    places = ",".join(":".join(map(str, deployment)) for deployment in info.deployments)
    return f"{info.topic}#{places}#{'' if info.max_message_bytes is None else info.max_message_bytes}"


def format_condition(topic: str, types: Iterable[str]) -> str:
    """The filter of one topic."""
    return f"{topic}#{','.join(sorted(types))}"


def partition_ids(partitions: int, stores: int) -> list[int]:
    """The ids of a topic's partitions on one Broker, in order."""
    return [store * STORE_STEP + number for store in range(stores) for number in range(partitions)]
