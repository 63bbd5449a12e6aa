"""Settings with which a consumer subscribes."""

import uuid
from dataclasses import dataclass

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import PERSISTENT
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema

Types = pb.CommandSubscribe
"""Namespace of the subscription types, such as `Types.Exclusive`, and of the initial positions, such as `Types.Earliest`."""
DEFAULT_MAX_BYTES = 16 << 20
"""Default of `Subscription.max_bytes`, with room for three entries of the largest size that brokers accept by default."""
DEFAULT_CHUNK_LIMITS = ChunkLimits()
READER_PREFIX = "mqbridge-reader-"
"""Start of the subscription name of a reader; the client's role may precede it."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Settings of a consumer. With `reader_from` it is a reader: it begins with that entry, and the broker stores no position."""

    name: str
    type: int = Types.Exclusive
    """Subscription type, a value of `Types`."""
    earliest: bool = True
    """True if a new subscription begins at the earliest message; False if it begins after the latest."""
    consumer_name: str = ""
    """Name that the topic's statistics show; empty: no name is sent."""
    reader_from: EntryId | None = None
    """Entry at which a reader begins; None for a durable subscription."""
    max_bytes: int = DEFAULT_MAX_BYTES
    """Maximum memory of the entries in the receiver queue, in bytes."""
    batch_index_ack: bool = False
    """True to acknowledge single messages of a batch at the broker, which must be configured for it. False: a batch is
    acknowledged when all its messages are."""
    ack_timeout_s: float | None = None
    """Time after delivery after which an unacknowledged entry is redelivered; None: never."""
    chunk_limits: ChunkLimits = DEFAULT_CHUNK_LIMITS
    """Limits for chunks of incomplete messages, in addition to `max_bytes`."""
    joins_chunks: bool = True
    """False to receive each chunk as an entry of its own, with a defect."""
    keeps_packed: bool = False
    """True to keep the compressed payload of each entry beside the unpacked one, so that the entry can be stored as it is."""
    rollback_s: int = 0
    """A new subscription begins with the messages published this many seconds ago; 0: `earliest` decides where it begins."""
    priority: int = 0
    """Shared: consumers with a lower number are served first. Failover: the lowest number becomes the active consumer."""
    read_compacted: bool = False
    """True to receive only the newest message of each key of a compacted topic; exclusive and failover only."""
    key_ranges: tuple[tuple[int, int], ...] = ()
    """Key_shared: the hash ranges (0 to 65535, both bounds included) of this consumer. Either all consumers of the subscription
    set their ranges, or none does, and the broker assigns them."""
    schema: Schema | None = None
    """Schema that the broker checks against the topic's schema; None: nothing is checked."""
    properties: tuple[tuple[str, str], ...] = ()
    """Properties that the broker stores with the subscription."""
    silence_s: float = 30.0
    """Time without an entry after which an exclusive or failover consumer requests the topic's last entry. If that entry was not
    received, delivery has stalled, and the consumer subscribes again."""
    create_topic: bool = True
    """True if SUBSCRIBE may create a missing topic, where the broker allows that; False: a missing topic is an error."""

    @property
    def ordered(self) -> bool:
        """True if one consumer receives the whole topic in order and acknowledges cumulatively."""
        return self.type in (Types.Exclusive, Types.Failover)

    def command(
        self, topic: str, consumer_id: int, start: EntryId | None, epoch: int, *, was_open: bool = False
    ) -> pb.CommandSubscribe:
        """Return SUBSCRIBE without its request id.

        The broker delivers to a reader from entry `start`: `reader_from` at first, after a reconnection the position reached. For
        other consumers `start` is None. `epoch` counts the SUBSCRIBEs of this consumer; on ordered subscriptions the broker sends
        it back with every entry, so that entries of an earlier SUBSCRIBE can be told apart.

        `was_open`: the consumer was subscribed before. Then SUBSCRIBE creates no persistent topic: it could be a partition that
        belongs to no topic. A subscription that was deleted meanwhile begins at the earliest message: those that were stored
        since then were not delivered.
        """
        is_persistent = topic.startswith(f"{PERSISTENT}://")
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=self.name,
            subType=self.type,  # type: ignore[arg-type]  # the enum's number
            consumer_id=consumer_id,
            consumer_name=self.consumer_name or None,
            priority_level=self.priority or None,
            read_compacted=self.read_compacted or None,
            initialPosition=Types.Earliest if self.earliest or was_open else Types.Latest,
            force_topic_creation=None if self.create_topic and not (was_open and is_persistent) else False,
            start_message_rollback_duration_sec=None if was_open else self.rollback_s or None,
            schema=None if self.schema is None else self.schema.to_wire(),
            consumer_epoch=epoch if self.ordered else None,
        )
        if start is not None:
            command.durable = False
            command.initialPosition = (
                Types.Latest
            )  # with Earliest, brokers replace a `start` at the topic's end by the first entry
            command.start_message_id.CopyFrom(ids.message_id(*start))
        if self.type == Types.Key_Shared:
            command.keySharedMeta.keySharedMode = pb.STICKY if self.key_ranges else pb.AUTO_SPLIT
            for first, last in self.key_ranges:
                command.keySharedMeta.hashRanges.add(start=first, end=last)
        for key, value in self.properties:
            command.subscription_properties.add(key=key, value=value)
        return command


def reader(start: EntryId, role: str | None = None) -> Subscription:
    """Return the subscription of a reader, with a unique name: two readers with the same name would exclude each other.

    The name begins with the client's role if that is known: a namespace may require this (subscription-auth-mode Prefix).
    """
    return Subscription(f"{f'{role}-' if role else ''}{READER_PREFIX}{uuid.uuid4().hex[:10]}", reader_from=start)


def is_reader(name: str) -> bool:
    """Return True for the name of a subscription made by `reader`, with or without a role before the prefix."""
    return READER_PREFIX in name
