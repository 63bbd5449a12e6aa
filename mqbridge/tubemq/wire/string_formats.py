"""String formats inside the protobuf messages: Brokers, topics, partitions, subscriptions.

    broker        id:host:port                                   the default port is written as one space
    topic         topic#id:partitions:stores[,...]#maxBytes      in responses to a producer's heartbeat
    partition     id:host:port#topic:partition                   in a consumer's heartbeats to a Broker
    subscription  consumer@group#id:host:port#topic:partition    in the Master's assignments and a consumer's reports
    failure       code:partition                                 a failed partition, in a Broker's responses to heartbeats
    condition     topic#type[,type]                              a filter, in requests to the Master
    key           id:topic:partition                             a partition without its Broker's address
    start offsets key=offset[,key=offset]                        start offsets that the members of a bound group choose
    topic meta    topic#id:stores:partitions:status[,...]        a topic, for members that choose their own partitions
    held          topic#id:partition[,id:partition]              the partitions that one of these members holds, for the Master

`id` is the number of a Broker. A Broker divides a topic into stores, each with the same number of partitions. Every
function that parses raises RemoteProtocolError for malformed text, and for a topic with more partitions than `wire/limits.py`
allows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError
from mqbridge.wire.limits import check_partitions, shorten

DEFAULT_MASTER_PORT = 8715
DEFAULT_MASTER_TLS_PORT = 8716
DEFAULT_BROKER_PORT = 8123
DEFAULT_BROKER_TLS_PORT = 8124
"""Masters omit the default port from a Broker's address; clients that use TLS then connect to the default TLS port."""
STORE_STEP = 10_000
"""Step of partition ids from one of a Broker's stores to the next: partition i of store s has the id s * 10000 + i."""


class Broker(NamedTuple):
    """A Broker: its id and address."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}:{self.host}:{self.port}"


class PartitionRef(NamedTuple):
    """A partition with its Broker's address; `partition` is the partition id at the Broker."""

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
    def key(self) -> "PartitionKey":
        """The partition without its Broker's address."""
        return PartitionKey(self.broker.id, self.topic, self.partition)


class PartitionKey(NamedTuple):
    """A partition without its Broker's address, as Broker id, topic and partition id; offsets are stored under this key."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}:{self.topic}:{self.partition}"


class TopicInfo(NamedTuple):
    """A topic, for producers; each of the `deployments` is (Broker id, number of partitions per store, number of stores).

    `max_message_bytes` is the topic's limit for the size of a message; None if the text has none.
    """

    topic: str
    deployments: tuple[tuple[int, int, int], ...]
    max_message_bytes: int | None

    @property
    def partition_count(self) -> int:
        """Number of partitions at all Brokers."""
        return sum(partitions * stores for _, partitions, stores in self.deployments)


class TopicMeta(NamedTuple):
    """A topic, for consumers that choose their partitions themselves.

    Each of the `deployments` is (Broker id, number of stores, number of partitions per store, is readable).
    """

    topic: str
    deployments: tuple[tuple[int, int, int, bool], ...]

    @property
    def partition_count(self) -> int:
        """Number of partitions at all Brokers."""
        return sum(stores * partitions for _, stores, partitions, _ in self.deployments)


class MemberPartition(NamedTuple):
    """A partition that a member of a group holds, or is assigned; `consumer` is the member's client id."""

    consumer: str
    group: str
    partition: PartitionRef

    def __str__(self) -> str:
        return format_subscription(*self)


def _malformed(kind: str, text: str) -> RemoteProtocolError:
    """Return the error for a text that cannot be parsed; `kind` says what was expected, for example "broker"."""
    return RemoteProtocolError(f"{shorten(text)!r} is not a valid {kind}")


def parse_broker(text: str, default_port: int = DEFAULT_BROKER_PORT) -> Broker:
    """Parse `id:host:port`; a blank port stands for `default_port`."""
    try:
        broker_id, address = text.split(":", 1)
        host, port = address.rsplit(":", 1)
        broker = Broker(int(broker_id), host, int(port) if port.strip() else default_port)
    except ValueError as error:
        raise _malformed("broker", text) from error
    if not host or not 0 < broker.port < 65536:
        raise _malformed("broker", text)
    return broker


def parse_partition(text: str, default_port: int = DEFAULT_BROKER_PORT) -> PartitionRef:
    """Parse `id:host:port#topic:partition`."""
    try:
        broker, topic_partition = text.split("#")
        topic, partition = topic_partition.split(":")
        return PartitionRef(parse_broker(broker, default_port), topic, int(partition))
    except ValueError as error:
        raise _malformed("partition", text) from error


def parse_subscription(text: str, default_port: int = DEFAULT_BROKER_PORT) -> PartitionRef:
    """Return the partition of `consumer@group#id:host:port#topic:partition`."""
    _, separator, partition = text.partition("#")
    if not separator:
        raise _malformed("subscription", text)
    return parse_partition(partition, default_port)


def parse_member_partition(text: str, default_port: int = DEFAULT_BROKER_PORT) -> MemberPartition:
    """Parse `consumer@group#id:host:port#topic:partition`."""
    member, separator, partition = text.partition("#")
    consumer, _, group = member.partition("@")
    if not (separator and consumer and group) or "@" in group:
        raise _malformed("subscription", text)
    return MemberPartition(consumer, group, parse_partition(partition, default_port))


def format_subscription(consumer: str, group: str, partition: PartitionRef) -> str:
    """Return the string with which a consumer reports to the Master that it holds `partition`."""
    return f"{consumer}@{group}#{partition}"


def parse_failure(text: str) -> tuple[int, PartitionRef]:
    """Return the error code and the partition of `code:partition`."""
    code, _, partition = text.partition(":")
    try:
        return int(code), parse_partition(partition)
    except ValueError as error:
        raise _malformed("partition failure", text) from error


def format_failure(code: int, partition: PartitionRef) -> str:
    """Return the string with which a Broker reports that a consumer does not hold `partition`; `code` is an error code."""
    return f"{code}:{partition}"


def parse_topic_info(text: str) -> TopicInfo:
    """Parse `topic#id:partitions:stores[,...]#maxBytes`; `#maxBytes` may be missing."""
    topic, _, remaining = text.partition("#")
    items, _, max_bytes = remaining.partition("#")
    try:
        deployments = tuple(_parse_deployment(item) for item in items.split(","))
        info = TopicInfo(topic, deployments, int(max_bytes) if max_bytes.strip() else None)
    except ValueError as error:
        raise _malformed("topic", text) from error
    check_partitions(info.partition_count, f"topic {topic}")
    return info


def _parse_deployment(text: str) -> tuple[int, int, int]:
    broker, partitions, stores = text.split(":")
    return int(broker), _parse_count(partitions), _parse_count(stores)


def _parse_count(text: str) -> int:
    """Parse a number of partitions or stores. Raises ValueError for a negative one."""
    if (count := int(text)) < 0:
        raise ValueError(f"{count} is negative")
    return count


def format_topic_info(info: TopicInfo) -> str:
    """Return the string that describes a topic to producers."""
    deployments = ",".join(":".join(map(str, deployment)) for deployment in info.deployments)
    return f"{info.topic}#{deployments}#{'' if info.max_message_bytes is None else info.max_message_bytes}"


def parse_topic_meta(text: str) -> TopicMeta:
    """Parse `topic#id:stores:partitions:status[,...]`. The strings of `parse_topic_info` have partitions before stores."""
    topic, separator, items = text.partition("#")
    try:
        if not separator or not topic:
            raise _malformed("topic's metadata", text)
        meta = TopicMeta(topic, tuple(_parse_meta_deployment(item) for item in items.split(",") if item))
    except ValueError as error:
        raise _malformed("topic's metadata", text) from error
    check_partitions(meta.partition_count, f"topic {topic}")
    return meta


def _parse_meta_deployment(text: str) -> tuple[int, int, int, bool]:
    """Return a deployment of a TopicMeta: status 1 means that consumers may read the partitions."""
    broker, stores, partitions, status = text.split(":")
    return int(broker), _parse_count(stores), _parse_count(partitions), int(status) == 1


def format_topic_meta(meta: TopicMeta) -> str:
    """Return the string that describes a topic to members that choose their partitions. Status 0 stands for not readable."""
    items = (f"{broker}:{stores}:{partitions}:{int(is_readable)}" for broker, stores, partitions, is_readable in meta.deployments)
    return f"{meta.topic}#{','.join(items)}"


def parse_key(text: str) -> PartitionKey:
    """Parse `id:topic:partition`, where `id` is the Broker's."""
    try:
        broker, topic, partition = text.split(":")
        return PartitionKey(int(broker), topic, int(partition))
    except ValueError as error:
        raise _malformed("partition key", text) from error


def format_start_offsets(offsets: Mapping[PartitionKey, int]) -> str:
    """Return the string with the start offsets that a member of a bound group chooses."""
    return ",".join(f"{key}={offset}" for key, offset in sorted(offsets.items()))


def parse_start_offsets(text: str) -> dict[PartitionKey, int]:
    """Return the offsets of `key=offset[,key=offset]` by partition; a blank text contains no offsets."""
    try:
        pairs = [item.split("=") for item in text.split(",") if item.strip()]
        return {parse_key(key): int(offset) for key, offset in pairs}
    except ValueError as error:
        raise _malformed("list of offsets", text) from error


def format_held_partitions(topic: str, refs: Sequence[PartitionRef]) -> str:
    """Return the string with which a member that chooses its partitions reports those partitions of a topic that it holds."""
    return f"{topic}#{','.join(ref.name for ref in refs)}"


def parse_held_partitions(text: str) -> list[PartitionKey]:
    """Parse `topic#id:partition[,id:partition]`."""
    topic, separator, items = text.partition("#")
    try:
        if not separator:
            raise _malformed("list of held partitions", text)
        pairs = [item.split(":") for item in items.split(",") if item]
        return [PartitionKey(int(broker), topic, int(partition)) for broker, partition in pairs]
    except ValueError as error:
        raise _malformed("list of held partitions", text) from error


def format_condition(topic: str, types: Iterable[str]) -> str:
    """Return the filter of one topic, which selects the messages of these types, as `topic#type[,type]`."""
    return f"{topic}#{','.join(sorted(types))}"


def parse_condition(text: str) -> tuple[str, frozenset[str]]:
    """Return the topic and the types of `topic#type[,type]`, without white space around them; there is one type at least."""
    topic, separator, items = text.partition("#")
    topic, types = topic.strip(), frozenset([item.strip() for item in items.split(",") if item.strip()])
    if not (separator and topic and types) or "#" in items:
        raise _malformed("filter", text)
    return topic, types


def partition_ids(partitions: int, stores: int) -> list[int]:
    """Return the ids of a topic's partitions on one Broker, ascending; `partitions` is their number per store."""
    return [store * STORE_STEP + number for store in range(stores) for number in range(partitions)]
