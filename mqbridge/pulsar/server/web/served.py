"""What the web side asks of the server of the binary protocol: who is connected, and which schemas topics have."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema


class ProducerView(NamedTuple):
    """A producer that is connected to this listener.

    name             its name
    address          address of its client, `host:port`
    message_count    number of messages that it has sent
    byte_count       their bytes
    connected_since  s since the epoch
    """

    name: str
    address: str
    message_count: int
    byte_count: int
    connected_since: float


class ConsumerView(NamedTuple):
    """A consumer that is connected to this listener.

    name             its name
    address          address of its client, `host:port`
    permits          number of messages that it accepts now
    unacked          number of messages that it has and has not acknowledged
    connected_since  s since the epoch
    """

    name: str
    address: str
    permits: int
    unacked: int
    connected_since: float


class SubscriptionView(NamedTuple):
    """The consumers of a subscription in one partition.

    type       `Exclusive`, `Shared`, `Failover` or `Key_Shared`
    consumers  the consumers, in the order in which they came
    is_held    False if another gateway delivers the partition to its own consumers now
    """

    type: str
    consumers: Sequence[ConsumerView]
    is_held: bool


class TopicSchemas(Protocol):
    """The schemas of topics, by their full names: see `mqbridge.pulsar.server.schemas.Schemas`."""

    async def latest(self, topic: str) -> RegisteredSchema | None:
        """Return the newest schema; None if the topic has none."""

    async def version(self, topic: str, version: bytes) -> RegisteredSchema | None:
        """Return the schema with this version; None if there is none."""

    async def register(self, topic: str, schema: Schema) -> bytes:
        """Add a schema if it is new, and return its version. Raises RequestRefused if it does not suit the topic."""

    async def delete(self, topic: str) -> None:
        """Delete all schemas of the topic."""


class ServedTopics(Protocol):
    """The clients of the binary protocol, by a topic's name in the cluster and the index by which clients count partitions."""

    @property
    def schemas(self) -> TopicSchemas:
        """The schemas of topics."""

    def producers(self, backing: str, partition: int) -> Sequence[ProducerView]:
        """Return the producers of a partition."""

    def subscriptions(self, backing: str, partition: int) -> Mapping[str, SubscriptionView]:
        """Return the subscriptions that have consumers here, by name; readers are among them."""

    async def disconnect(self, backing: str, partition: int, subscription: str) -> None:
        """Close the consumers of a subscription; SDKs come back by themselves."""

    async def close_topic(self, backing: str) -> None:
        """Close all producers and consumers of a topic, as a broker does when a topic is deleted or unloaded."""
