"""The structured strings inside the messages: brokers, topics, partitions, subscriptions.

    broker        id:host:port                                   the port is one space where it is the default
    topic         topic#id:partitions:stores[,...]#maxBytes      of a producer's heartbeat
    partition     id:host:port#topic:partition                   of a consumer's heartbeats to a Broker
    subscription  consumer@group#id:host:port#topic:partition    of events and of what a consumer reports
    failure       code:partition
    condition     topic#type[,type]                              a filter, as the Master is told it
    key           broker:topic:partition                         a partition without its Broker's address
    required      key=offset[,key=offset]                        where a bound group wants to start
    topic meta    topic#id:stores:partitions:status[,...]        a topic as members that balance themselves are told it
    holding       topic#broker:partition[,broker:partition]      what such a member says it holds

Whatever cannot be read raises RemoteProtocolError.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError

DEFAULT_BROKER_PORT = 8123
DEFAULT_BROKER_TLS_PORT = 8124
"""What Masters leave out of a Broker's address; it is the port with TLS for clients that came by TLS."""
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
    def key(self) -> "Key":
        """What it is known by wherever its Broker may be reached."""
        return Key(self.broker.id, self.topic, self.partition)


class Key(NamedTuple):
    """A partition of a cluster: what offsets are kept by."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}:{self.topic}:{self.partition}"


class TopicInfo(NamedTuple):
    """A topic as producers are told it: (broker id, partitions per store, stores) where it is deployed."""

    topic: str
    deployments: tuple[tuple[int, int, int], ...]
    max_message_bytes: int | None


class TopicMeta(NamedTuple):
    """A topic as members that balance themselves are told it: (broker id, stores, partitions per store, may be read)."""

    topic: str
    deployments: tuple[tuple[int, int, int, bool], ...]


def _bad(kind: str, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{text!r} is not a {kind}")


def parse_broker(text: str, default_port: int = DEFAULT_BROKER_PORT) -> Broker:
    """Read `id:host:port`."""
    try:
        number, rest = text.split(":", 1)
        host, port = rest.rsplit(":", 1)
        found = Broker(int(number), host, int(port) if port.strip() else default_port)
    except ValueError as error:
        raise _bad("broker", text) from error
    if not host or not 0 < found.port < 65536:
        raise _bad("broker", text)
    return found


def parse_partition(text: str, default_port: int = DEFAULT_BROKER_PORT) -> PartitionRef:
    """Read `id:host:port#topic:partition`."""
    try:
        broker, place = text.split("#")
        topic, partition = place.split(":")
        return PartitionRef(parse_broker(broker, default_port), topic, int(partition))
    except ValueError as error:
        raise _bad("partition", text) from error


def parse_subscription(text: str, default_port: int = DEFAULT_BROKER_PORT) -> PartitionRef:
    """Read the partition of `consumer@group#id:host:port#topic:partition`."""
    _, found, rest = text.partition("#")
    if not found:
        raise _bad("subscription", text)
    return parse_partition(rest, default_port)


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


def parse_topic_meta(text: str) -> TopicMeta:
    """Read `topic#id:stores:partitions:status[,...]`; `parse_topic_info` has stores and partitions the other way round."""
    topic, found, rest = text.partition("#")
    try:
        if not found or not topic:
            raise _bad("topic's metadata", text)
        return TopicMeta(topic, tuple(_meta_deployment(place) for place in rest.split(",") if place))
    except ValueError as error:
        raise _bad("topic's metadata", text) from error


def _meta_deployment(text: str) -> tuple[int, int, int, bool]:
    broker, stores, partitions, status = text.split(":")
    return int(broker), int(stores), int(partitions), int(status) == 1


def format_topic_meta(meta: TopicMeta) -> str:
    """The string that tells members that balance themselves of a topic."""
    places = (f"{broker}:{stores}:{partitions}:{int(is_open)}" for broker, stores, partitions, is_open in meta.deployments)
    return f"{meta.topic}#{','.join(places)}"


def parse_key(text: str) -> Key:
    """Read `broker:topic:partition`."""
    try:
        broker, topic, partition = text.split(":")
        return Key(int(broker), topic, int(partition))
    except ValueError as error:
        raise _bad("partition key", text) from error


def format_required(offsets: Mapping[Key, int]) -> str:
    """Where a bound group wants to start."""
    return ",".join(f"{key}={offset}" for key, offset in sorted(offsets.items()))


def parse_required(text: str) -> dict[Key, int]:
    """Read `key=offset[,key=offset]`; blank is none."""
    try:
        pairs = [item.split("=") for item in text.split(",") if item.strip()]
        return {parse_key(key): int(offset) for key, offset in pairs}
    except ValueError as error:
        raise _bad("list of offsets", text) from error


def format_holding(topic: str, refs: Sequence[PartitionRef]) -> str:
    """What a member that balances itself holds of a topic."""
    return f"{topic}#{','.join(ref.name for ref in refs)}"


def parse_holding(text: str) -> list[Key]:
    """Read `topic#broker:partition[,broker:partition]`."""
    topic, found, rest = text.partition("#")
    try:
        if not found:
            raise _bad("holding", text)
        pairs = [place.split(":") for place in rest.split(",") if place]
        return [Key(int(broker), topic, int(partition)) for broker, partition in pairs]
    except ValueError as error:
        raise _bad("holding", text) from error


def format_condition(topic: str, types: Iterable[str]) -> str:
    """The filter of one topic."""
    return f"{topic}#{','.join(sorted(types))}"


def partition_ids(partitions: int, stores: int) -> list[int]:
    """The ids of a topic's partitions on one Broker, in order."""
    return [store * STORE_STEP + number for store in range(stores) for number in range(partitions)]
