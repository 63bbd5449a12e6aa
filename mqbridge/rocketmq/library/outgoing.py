"""The message class of producers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqbridge.errors import MappingError
from mqbridge.library.contract import Properties
from mqbridge.message import Message, Pair
from mqbridge.rocketmq.mapping.table import FLAG

MESSAGE_OVERHEAD_BYTES = 128
"""Approximate bytes of a stored message besides payload and application properties: its unique id and the batch framing."""


@dataclass(slots=True)
class OutgoingMessage:
    """A message to send: fields of `mqbridge.message.Message`, and `delay_level` and `flag`, which only RocketMQ has.

    payload      bytes, or None for a tombstone
    key          sharding key: its hash chooses the queue, like Java's SelectMessageQueueByHash; stored as `__SHARDINGKEY`;
                 None: no key, so the queues take turns
    keys         index keys by which `Query.by_key` finds the message; stored as `KEYS`
    msg_type     tag by which consumers filter; stored as `TAGS`
    properties   names and values of the application's properties
    event_time   time of the event that the message reports, ms since the epoch; None: the time of sending
    deliver_at   time before which no consumer receives the message, ms since the epoch, at most three days ahead; None: no delay
    delay_level  level of the broker's `messageDelayLevel`, by default 1 (1 s) to 18 (2 h); 0: no delay
    flag         32-bit number that the application chooses; brokers store it unchanged
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
        """Turn the properties, possibly an iterator, into pairs.

        Raises TypeError for a payload or properties of a wrong type, and MappingError for both `delay_level` and `deliver_at`.
        """
        pairs = self.properties.items() if isinstance(self.properties, Mapping) else self.properties
        self.properties = tuple((name, value) for name, value in pairs)
        if not all(isinstance(text, str) for pair in self.properties for text in pair):
            raise TypeError(f"names and values of properties must be str: {self.properties!r}")
        if not isinstance(self.payload, bytes | None):
            raise TypeError(f"the payload must be bytes or None, not {type(self.payload).__name__}")
        if self.delay_level and self.deliver_at is not None:
            raise MappingError("a message cannot have both delay_level and deliver_at: give one of them")

    @property
    def size(self) -> int:
        """Approximate number of bytes on the wire: of the payload and the properties, whose characters count as bytes."""
        return MESSAGE_OVERHEAD_BYTES + len(self.payload or b"") + sum(len(name) + len(value) for name, value in self._pairs)

    @property
    def queue_key(self) -> str | None:
        """The sharding key as text, whose hash chooses the queue; None if the message has no key."""
        return self.key.decode(errors="replace") if isinstance(self.key, bytes) else self.key

    @property
    def _pairs(self) -> tuple[Pair, ...]:
        """The properties; the assertion tells the type checker their type after `__post_init__`."""
        assert isinstance(self.properties, tuple)  # noqa: S101 - by __post_init__
        return self.properties

    def as_message(self) -> Message:
        """Return the message to encode. It has `flag` as the property FLAG, which is encoded as the flag of the record.

        It lacks `delay_level`, for which `Message` has no field: `MessageEncoder` adds it.
        """
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
