"""Settings with which a consumer subscribes."""

import uuid
from dataclasses import dataclass

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema

Types = pb.CommandSubscribe
MAX_BYTES = 16 << 20
DEFAULT_CHUNK_LIMITS = ChunkLimits()
READER_MARK = "mqbridge-reader-"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Settings of a consumer. `reader_from` makes it a reader: it begins with that entry, and the broker keeps no position."""

    name: str
    type: int = Types.Exclusive
    earliest: bool = True
    """A new subscription begins at the earliest message, else behind the latest."""
    consumer_name: str = ""
    reader_from: EntryId | None = None
    max_bytes: int = MAX_BYTES
    """Maximum size of the entries that wait at the consumer."""
    batch_index_ack: bool = False
    """Acknowledge single messages of a batch; only with a broker that is configured for it."""
    ack_timeout_s: float | None = None
    """Entries that are not acknowledged so many seconds after they were handed out are delivered again."""
    chunk_limits: ChunkLimits = DEFAULT_CHUNK_LIMITS
    """Limits of chunks that wait for the rest of their message, besides `max_bytes`."""
    rollback_s: int = 0
    """A new subscription begins with messages that were published so many seconds ago."""
    priority: int = 0
    """Consumers with a lower number are served first (shared), or become the active one (failover)."""
    read_compacted: bool = False
    """Only the newest message of each key, where the topic is compacted; exclusive and failover only."""
    key_ranges: tuple[tuple[int, int], ...] = ()
    """Of a key_shared subscription: the ranges of hashes (0 to 65535, both ends included) that this consumer gets; all consumers
    of the subscription must give theirs. Without, the broker divides."""
    schema: Schema | None = None
    """Checked against the topic's."""
    properties: tuple[tuple[str, str], ...] = ()
    """Kept with the subscription."""
    silence_s: float = 30.0
    """After so many seconds without an entry an exclusive or failover consumer asks for the last one, and resubscribes if it has
    not been received."""
    create_topic: bool = True
    """The broker may create the topic by being asked, if it is set up so."""

    @property
    def ordered(self) -> bool:
        """True if one consumer has the whole topic, and acknowledges cumulatively."""
        return self.type in (Types.Exclusive, Types.Failover)

    def command(self, topic: str, consumer_id: int, start: EntryId | None, epoch: int) -> pb.CommandSubscribe:
        """Return SUBSCRIBE without its request id; a reader continues at `start`, and the broker writes `epoch` on entries."""
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=self.name,
            subType=self.type,  # type: ignore[arg-type]  # the enum's number
            consumer_id=consumer_id,
            consumer_name=self.consumer_name or None,
            priority_level=self.priority or None,
            read_compacted=self.read_compacted or None,
            initialPosition=Types.Earliest if self.earliest else Types.Latest,
            force_topic_creation=None if self.create_topic else False,
            start_message_rollback_duration_sec=self.rollback_s or None,
            schema=None if self.schema is None else self.schema.to_wire(),
            consumer_epoch=epoch if self.ordered else None,
        )
        if start is not None:
            command.durable = False
            command.initialPosition = Types.Latest  # or the broker takes the latest place as "from the beginning"
            command.start_message_id.CopyFrom(ids.message_id(*start))
        if self.type == Types.Key_Shared:
            command.keySharedMeta.keySharedMode = pb.STICKY if self.key_ranges else pb.AUTO_SPLIT
            for first, last in self.key_ranges:
                command.keySharedMeta.hashRanges.add(start=first, end=last)
        for key, value in self.properties:
            command.subscription_properties.add(key=key, value=value)
        return command


def reader(start: EntryId, role: str | None = None) -> Subscription:
    """Return the subscription of a reader under a unique name: two readers of one name would exclude each other.

    The name begins with our role if it is known: a namespace may demand that (subscription-auth-mode Prefix).
    """
    return Subscription(f"{f'{role}-' if role else ''}{READER_MARK}{uuid.uuid4().hex[:10]}", reader_from=start)


def is_reader(name: str) -> bool:
    """Return True for the name of a subscription made by `reader`."""
    return READER_MARK in name
