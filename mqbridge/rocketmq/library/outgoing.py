"""A message to be sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqbridge.errors import MappingError
from mqbridge.library.contract import Properties
from mqbridge.message import Message, Pair
from mqbridge.rocketmq.mapping.table import FLAG

PER_MESSAGE_BYTES = 128
"""What a message without properties adds to its payload, about: its unique id and the framing of a batch."""


@dataclass(slots=True)
class OutgoingMessage:
    """A message in the words of `mqbridge.message.Message`, and two of RocketMQ's own.

    payload      None is a tombstone
    key          chooses the queue, as Java's selector by hash, and is stored as `__SHARDINGKEY`
    keys         index keys, by which brokers find the message (KEYS)
    msg_type     the tag (TAGS), by which brokers filter
    properties   names and values
    event_time   ms since the epoch
    deliver_at   ms since the epoch, at most three days ahead
    delay_level  1 (1 s) to 18 (2 h) of the broker's `messageDelayLevel`; 0 for no delay
    flag         the application's number, 32 bits
    """

    payload: bytes | None
    key: str | bytes | None = None
    keys: Sequence[str] = ()
    msg_type: str | None = None
    properties: Properties = ()
    event_time: int | None = None
    deliver_at: int | None = None
    delay_level: int = 0
    flag: int = 0

    def __post_init__(self) -> None:
        """Read the properties, which may be an iterator. Raises TypeError, and MappingError for two delays."""
        pairs = self.properties.items() if isinstance(self.properties, Mapping) else self.properties
        self.properties = tuple((name, value) for name, value in pairs)
        if not all(isinstance(text, str) for pair in self.properties for text in pair):
            raise TypeError(f"names and values of properties are text: {self.properties!r}")
        if not isinstance(self.payload, bytes | None):
            raise TypeError(f"a payload is bytes or None, not {type(self.payload).__name__}")
        if self.delay_level and self.deliver_at is not None:
            raise MappingError("a message has delay_level or deliver_at, not both")

    @property
    def size(self) -> int:
        """Its bytes on the wire, about."""
        return PER_MESSAGE_BYTES + len(self.payload or b"") + sum(len(name) + len(value) for name, value in self._pairs)

    @property
    def queue_key(self) -> str | None:
        """The text whose hash chooses the queue."""
        return self.key.decode(errors="replace") if isinstance(self.key, bytes) else self.key

    @property
    def _pairs(self) -> tuple[Pair, ...]:
        assert isinstance(self.properties, tuple)  # noqa: S101 - see __post_init__
        return self.properties

    def as_message(self) -> Message:
        """The message that the mapping writes."""
        properties = self._pairs
        if self.flag:
            properties += ((FLAG, str(self.flag)),)
        return Message(
            self.payload,
            properties,
            key=self.key,
            keys=tuple(self.keys),
            msg_type=self.msg_type,
            event_time=self.event_time,
            deliver_at=self.deliver_at,
        )
