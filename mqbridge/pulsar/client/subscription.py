"""What a consumer asks for when it subscribes."""

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
    """How to subscribe. `reader_from` makes it a reader: nothing is kept at the broker, and it begins with that entry."""

    name: str
    type: int = Types.Exclusive
    earliest: bool = True
    """Where the subscription begins if there is none of this name."""
    consumer_name: str = ""
    reader_from: EntryId | None = None
    max_bytes: int = MAX_BYTES
    """Of entries that wait at the consumer."""
    batch_index_ack: bool = False
    """Acknowledge single messages of a batch; only with a broker that is configured for it."""
    ack_timeout_s: float | None = None
    """Have delivered again what is not acknowledged this long after it was handed over."""
    chunk_limits: ChunkLimits = DEFAULT_CHUNK_LIMITS
    """What may wait for the rest of its message, apart from `max_bytes`."""
    rollback_s: int = 0
    """Begin with what was published this many seconds ago."""
    priority: int = 0
    """Consumers with a lower number are served first (shared), or become the active one (failover)."""
    read_compacted: bool = False
    """Of each key only the newest message, where the topic is compacted; exclusive and failover only."""
    key_ranges: tuple[tuple[int, int], ...] = ()
    """Of a key_shared subscription: the ranges of hashes (0 to 65535, both ends included) that this consumer gets; all consumers
    of the subscription must give theirs. Without, the broker divides."""
    schema: Schema | None = None
    """Checked against the topic's."""
    properties: tuple[tuple[str, str], ...] = ()
    """Kept with the subscription."""
    silence_s: float = 30.0
    """After so long without an entry an exclusive or failover subscription asks whether there are more, and then begins anew."""
    create_topic: bool = True
    """The broker may create the topic by being asked, if it is set up so."""

    @property
    def ordered(self) -> bool:
        """One consumer has the whole topic, and acknowledges cumulatively."""
        return self.type in (Types.Exclusive, Types.Failover)

    def command(self, topic: str, consumer_id: int, start: EntryId | None, epoch: int) -> pb.CommandSubscribe:
        """SUBSCRIBE without its request id; `start` is where a reader goes on, `epoch` what the broker writes on entries."""
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
    """A reader under a name that no other has: two of one name would exclude each other.

    It begins with our role where that is known: a namespace may demand that (subscription-auth-mode Prefix).
    """
    return Subscription(f"{f'{role}-' if role else ''}{READER_MARK}{uuid.uuid4().hex[:10]}", reader_from=start)


def is_reader(name: str) -> bool:
    """Whether a subscription is one of `reader`."""
    return READER_MARK in name
