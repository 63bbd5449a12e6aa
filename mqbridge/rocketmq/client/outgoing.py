"""A message as a person writes it, and its wire form: properties, a compressed body, the flags for both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.wire import batch, compression
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Sys

COMPRESS_BYTES = 4096
"""From this size on bodies are compressed, as the Java clients do."""


@dataclass(slots=True)
class OutgoingMessage:
    """What a producer is given.

    `keys` are for looking the message up; they hold no blanks. `sharding_key` chooses the queue and travels. `delay_level` is 1
    (1 s) to 18 (2 h); `deliver_at` an absolute time in ms, at most 3 days ahead; one of both. `codec` is one of
    `wire.compression.NAMES`, None for no compression; consumers before 4.9.4 know zlib only. `born` is the time of the message in
    ms, now by default.
    """

    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    delay_level: int = 0
    deliver_at: int | None = None
    flag: int = 0
    born: int | None = None
    codec: str | None = "zlib"

    @property
    def delayed(self) -> bool:
        """Whether the broker is to keep it back for a while."""
        return self.delay_level > 0 or self.deliver_at is not None

    def encode(self, unique_id: Callable[[], str]) -> tuple[bytes, bytes, int]:
        """Body, property string and system flag. Raises LocalProtocolError, which names what cannot be said."""
        body, sys_flag = self.packed()
        return body, props.encode(self.pairs(unique_id())), sys_flag

    def pairs(self, unique_id: str) -> list[tuple[str, str]]:
        """All properties, the system's first. Raises LocalProtocolError."""
        if self.delay_level > 0 and self.deliver_at is not None:
            raise LocalProtocolError("a message has a delay level or a time of delivery, not both")
        if any(" " in key or not key for key in self.keys):
            raise LocalProtocolError(f"the keys {self.keys!r} are separated by blanks: none of them may hold one, or be empty")
        reserved = props.SYSTEM_NAMES & self.properties.keys()
        if reserved:
            raise LocalProtocolError(f"the property {min(reserved)!r} is the system's: give it another name")
        own = {
            Name.UNIQ_KEY: unique_id,
            Name.TAGS: self.tags,
            Name.KEYS: " ".join(self.keys) or None,
            Name.SHARDING_KEY: self.sharding_key,
            Name.DELAY: str(self.delay_level) if self.delay_level > 0 else None,
            Name.TIMER_DELIVER_MS: None if self.deliver_at is None else str(self.deliver_at),
        }
        return [*((name, value) for name, value in own.items() if value is not None), *self.properties.items()]

    def packed(self) -> tuple[bytes, int]:
        """The body, compressed where that helps, and the system flag that says so."""
        if self.codec is None or len(self.body) < COMPRESS_BYTES:
            return self.body, 0
        codec = compression.NAMES.get(self.codec)
        if codec is None:
            raise LocalProtocolError(f"codec {self.codec!r} is not known; there are {', '.join(compression.NAMES)}")
        packed = compression.compress(codec, self.body)
        return (packed, Sys.COMPRESSED | codec) if len(packed) < len(self.body) else (self.body, 0)


def encode_batch(messages: Sequence[OutgoingMessage], unique_id: Callable[[], str]) -> bytes:
    """The body of a batch. Raises LocalProtocolError for no messages, and for delays, which a batch cannot have."""
    if not messages:
        raise LocalProtocolError("a batch without messages")
    if any(message.delayed for message in messages):
        raise LocalProtocolError("a message with a delay cannot be in a batch: send it alone")
    if not all(message.body for message in messages):
        raise LocalProtocolError("a message without a body: RocketMQ cannot carry it")
    return b"".join(
        batch.encode_element(message.body, props.encode(message.pairs(unique_id())), message.flag) for message in messages
    )
