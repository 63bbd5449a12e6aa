"""What a consumer asks for when it subscribes."""

import uuid
from dataclasses import dataclass

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb

Types = pb.CommandSubscribe
MAX_BYTES = 16 << 20


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

    @property
    def ordered(self) -> bool:
        """One consumer has the whole topic, and acknowledges cumulatively."""
        return self.type in (Types.Exclusive, Types.Failover)

    def command(self, topic: str, consumer_id: int, start: EntryId | None, epoch: int) -> pb.CommandSubscribe:
        """SUBSCRIBE without its request id; `start` is where a reader goes on."""
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=self.name,
            subType=self.type,  # type: ignore[arg-type]  # the enum's number
            consumer_id=consumer_id,
            consumer_name=self.consumer_name or None,
            initialPosition=Types.Earliest if self.earliest else Types.Latest,
            consumer_epoch=epoch if self.ordered else None,
        )
        if start is not None:
            command.durable = False
            command.start_message_id.CopyFrom(ids.message_id(*start))
        if self.type == Types.Key_Shared:
            command.keySharedMeta.keySharedMode = pb.AUTO_SPLIT
        return command


def reader(start: EntryId) -> Subscription:
    """A reader under a name that no other has: two of one name would exclude each other."""
    return Subscription(f"mqbridge-reader-{uuid.uuid4().hex[:10]}", reader_from=start)
