"""Settings with which a producer registers at its broker."""

from dataclasses import dataclass

from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer. Without a name the broker makes one."""

    name: str | None = None
    """Key of deduplication; one producer of a topic at a time may have it."""
    codec: int = pb.NONE
    access: int = pb.Shared
    """`Exclusive` fails where there is another producer, `WaitForExclusive` waits until there is none, `ExclusiveWithFencing`
    takes the topic from the others."""
    schema: Schema | None = None
    """Registered with the topic, or checked against what it has; its version goes with every message."""
    chunking: bool = False
    """Cut a message that is larger than the broker takes, rather than refuse it."""
    chunk_bytes: int | None = None
    """Most bytes of a chunk; what the broker takes by default."""
    properties: tuple[tuple[str, str], ...] = ()
    """Shown in the topic's statistics."""
    initial_subscription: str | None = None
    """A subscription to create with the topic, so that nothing is lost before its first consumer."""
    max_elapsed_s: float | None = None
    """An entry without a receipt after so many seconds fails; None: never."""
    retries_first_opening: bool = False
    """The first opening, too, is retried without a deadline: a broker that recovers its ledgers refuses for minutes."""
    sole_sender: bool = False
    """The producer ends if another one has used its name while the connection was lost: the broker could drop pending entries as
    duplicates of those that the other producer has stored."""
    fails_in_order: bool = False
    """An entry that exceeds `max_elapsed_s` fails all entries behind it, so that nothing overtakes it when it is sent again."""

    def command(self, topic: str, producer_id: int, name: str | None, epoch: int, topic_epoch: int | None) -> pb.CommandProducer:
        """PRODUCER without its request id; `name` is the one in use by now, `topic_epoch` that of an exclusive producer."""
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
