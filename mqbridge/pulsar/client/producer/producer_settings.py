"""Settings of a producer, and its PRODUCER command."""

from dataclasses import dataclass

from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer."""

    name: str | None = None
    """Name of the producer, by which the broker deduplicates; only one producer of a topic may have it at a time. None: the
    broker generates a name."""
    codec: int = pb.NONE
    """Compression of payloads, a value of `pb.CompressionType`."""
    access: int = pb.Shared
    """Access mode, a value of `pb.ProducerAccessMode`. `Exclusive` fails if there is another producer, `WaitForExclusive` waits
    until there is none, `ExclusiveWithFencing` closes the others."""
    schema: Schema | None = None
    """Schema to register with the topic, or to check against its schema. Every message carries the schema's version. None:
    messages without a schema."""
    chunking: bool = False
    """True to split a message that exceeds the broker's maximum size into chunks; False to refuse it."""
    unchunked_reason: str = ""
    """Without `chunking`: why messages must not be split, for the error about a message that is too large; may be empty."""
    chunk_bytes: int | None = None
    """Maximum size of a chunk; None: the broker's maximum message size."""
    properties: tuple[tuple[str, str], ...] = ()
    """Properties that the topic's statistics show with this producer."""
    initial_subscription: str | None = None
    """Name of a subscription to create with the topic, so that messages are stored for it before its first consumer connects.
    None: no subscription is created."""
    max_elapsed_s: float | None = None
    """Time after `EntryProducer.send` after which an entry without a receipt fails; None: never."""
    retries_first_opening: bool = False
    """True: after temporary errors, the first opening is retried without limit, because a broker that recovers its ledgers
    refuses producers for minutes. False: it is retried only until the client's operation timeout."""
    sole_sender: bool = False
    """True: if another producer has used this name while the connection was lost, fail all entries and end this producer,
    because the broker could drop pending entries as duplicates of the other producer's. False: continue in spite of that."""
    is_partition: bool | None = None
    """True: the topic is a partition of a partitioned topic. False: it is a topic by itself. In both cases it must exist, and
    TopicChanged ends the producer if it does not. None: the first opening creates a missing topic, where the broker allows that,
    and so does a later one, unless the topic's name is that of a partition."""
    fails_in_order: bool = False
    """True if an entry that exceeds `max_elapsed_s` also fails all entries after it, so that none of them is stored before the
    failed entry is sent again. False: the later entries may be stored."""

    def command(self, topic: str, producer_id: int, name: str | None, epoch: int, topic_epoch: int | None) -> pb.CommandProducer:
        """Return PRODUCER without its request id.

        `name` is the configured name, or the one that the broker generated at the first PRODUCER; None before that. `epoch`
        numbers the PRODUCER commands of this producer. `topic_epoch` is the number that the broker assigned to this producer's
        exclusive access, so that it can refuse a producer that another one has replaced; None without exclusive access.
        """
        command = pb.CommandProducer(
            topic=topic,
            producer_id=producer_id,
            producer_name=name,
            epoch=epoch,
            user_provided_producer_name=self.name is not None,
            producer_access_mode=self.access,  # type: ignore[arg-type]  # the enum's number
            topic_epoch=topic_epoch,
            initial_subscription_name=self.initial_subscription,
            schema=None if self.schema is None else self.schema.to_wire(),
        )
        for key, value in self.properties:
            command.metadata.add(key=key, value=value)
        return command
