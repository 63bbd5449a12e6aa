"""The gateway's message model: messages, the batches that move through the gateway, and shares of batches.

A batch is a run of consecutive messages of one source partition. It is decoded into `Message` objects only on demand. Tasks,
futures and log lines are per batch, never per message.

Properties are an ordered tuple of pairs, not a mapping: Pulsar and TubeMQ both allow a key twice, and order is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from mqbridge.native import pick

Position = tuple[int, ...]
"""A position in a partition; positions compare as tuples.

Its components are: Pulsar (ledger, entry, batch index), RocketMQ, log and memory (offset,), TubeMQ (offset, index). A TubeMQ
Broker sends messages in packs, one in each response, with the offset of the pack only. So `offset` is the one where a pack
begins, and `index` is the number of messages of the partition from there to the message.
"""

Pair = tuple[str, str]
"""Name and value of a property."""

RESERVED_PREFIX = "mqbridge."
"""Prefix of the property names that the gateway reserves for itself; see `docs/reference/mapping.md`."""
MSG_TYPE, MSG_TIME = "$msgType$", "$msgTime$"
"""Names of TubeMQ's attribute pairs with a message's type and time; as properties they keep these names in every system."""


def format_position(position: Position) -> str:
    """Format a position as text: `(12, 3)` as `12:3`."""
    if len(position) == 3:  # called once per message: a third of the time of the general case below
        return f"{position[0]}:{position[1]}:{position[2]}"
    if len(position) == 2:
        return f"{position[0]}:{position[1]}"
    if len(position) == 1:
        return str(position[0])
    return ":".join(map(str, position))


def parse_position(text: str) -> Position:
    """Parse the text of a position: `12:3` is `(12, 3)`. Raises ValueError for any other text."""
    return tuple(map(int, text.split(":")))


NO_INDEX = -1
"""The index of a partition that has none: it is at a broker that is not among those over which indexes are counted."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a topic of a cluster.

    `name` is the system's own name of the partition (TubeMQ `broker:partition`, RocketMQ `broker:queue`, Pulsar and log the
    number). `index` is its index in the topic, by number first and then by broker (see `mqbridge.adapter.known_brokers`), or
    NO_INDEX. Two partitions with the same name are equal, whatever their index is.
    """

    cluster: str
    topic: str
    name: str
    index: int = field(compare=False)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.topic}/{self.name}"


class Message:
    """One message. A plain class with slots, because decoding makes one object per message.

    payload        bytes, or None for a tombstone
    properties     ordered pairs of text
    key            routing key: text, or bytes if the source has a binary key
    ordering_key   Pulsar's ordering key, as bytes
    keys           index keys (RocketMQ's `KEYS`)
    msg_type       TubeMQ's message type, RocketMQ's tag
    attributes     TubeMQ's free attribute string, byte for byte; None if the message has none
    event_time     time of the event, set by the application; ms since the epoch
    publish_time   time of publishing, set by the source's producer or broker; ms since the epoch
    deliver_at     time before which a delayed message is not delivered; ms since the epoch
    delivery_count number of earlier deliveries
    position       position in the source partition
    origin         partition and position of the message from which a gateway made this one (`mqbridge.origin`); None if no
                   gateway stamped it
    hops           number of gateways that the message has passed through
    defect         reason why the message could not be decoded; None if it was decoded. With a defect, the message is never
                   delivered to a target, and is raw: its payload contains all that the source stores of it, in the form that the
                   property `mqbridge.raw` names; other fields are copies of what can be read
    """

    __slots__ = (
        "attributes",
        "defect",
        "deliver_at",
        "delivery_count",
        "event_time",
        "hops",
        "key",
        "keys",
        "msg_type",
        "ordering_key",
        "origin",
        "payload",
        "position",
        "properties",
        "publish_time",
    )

    def __init__(
        self,
        payload: bytes | None,
        properties: tuple[Pair, ...] = (),
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        keys: tuple[str, ...] = (),
        msg_type: str | None = None,
        attributes: bytes | None = None,
        event_time: int | None = None,
        publish_time: int | None = None,
        deliver_at: int | None = None,
        delivery_count: int = 0,
        position: Position = (),
        origin: str | None = None,
        hops: int = 0,
        defect: str | None = None,
    ) -> None:
        self.payload = payload
        self.properties = properties
        self.key = key
        self.ordering_key = ordering_key
        self.keys = keys
        self.msg_type = msg_type
        self.attributes = attributes
        self.event_time = event_time
        self.publish_time = publish_time
        self.deliver_at = deliver_at
        self.delivery_count = delivery_count
        self.position = position
        self.origin = origin
        self.hops = hops
        self.defect = defect

    def as_dict(self) -> dict[str, Any]:
        """Return every field by name."""
        return {name: getattr(self, name) for name in Message.__slots__}

    def replace(self, **changes: Any) -> "Message":
        """Return a copy with some fields changed."""
        copy = Message(*fields_of(self))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def property(self, key: str) -> str | None:
        """Return the first value of the property named `key`, None if there is none."""
        # If the first pair matches, this loop takes a quarter of the time of `next` over a generator.
        for name, value in self.properties:
            if name == key:
                return value
        return None

    def property_values(self, key: str) -> list[str]:
        """Return all values of the property named `key`."""
        return [value for name, value in self.properties if name == key]

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items() if value not in (None, (), 0))
        return f"Message({text if len(text) <= 300 else text[:300] + '…'})"


# Returns all fields in the order of the constructor's parameters. Positional arguments take a quarter of the time of keyword
# arguments from a dict.
fields_of = attrgetter(*Message.__init__.__code__.co_varnames[1 : 1 + len(Message.__slots__)])


class Unit(NamedTuple):
    """What a system stores and delivers as one, in its own format: a Pulsar entry, a RocketMQ record.

    data          its bytes, without the position, which changes from system to system
    message_count number of messages
    published_ms  when it was published, ms since the epoch; None if unknown
    position      position of its first message; () before it is stored
    left_out      bit k is set if message k is not in the batch: it is outside of the range that was read, or acknowledged already
    """

    data: bytes
    message_count: int
    published_ms: int | None
    position: Position = ()
    left_out: int = 0


class Batch:
    """Consecutive messages of one source partition, in the form in which they were received.

    partition     the source partition
    format        the format of `units`, such as `pulsar.entry` (see `mqbridge.adapter.formats`); if there are none, the name of
                  the received form, or `messages` if there are only decoded messages
    data          the received form, which only the adapter that made the batch knows; None if there is none
    count         number of messages
    size          bytes of the payloads, on some systems with the properties; for rate limits and metrics
    held_bytes    bytes of memory that the batch uses, for budgets
    first         position of the first message
    next          position after the last message, from which a restart resumes
    handle        opaque value with which the inbound acknowledges the batch
    published_ms  publish time of the first message (ms since the epoch); None if unknown, or known only after decoding
    dispatched_at loop time at which the gateway began to send the batch, after waiting for rate limits and budget; 0.0 before

    messages_replace_data
                  True if the decoded messages can take the place of the received form: they use no more memory, because nothing
                  is compressed, and the inbound needs only positions, counts and `handle` to acknowledge the batch
    """

    __slots__ = (
        "_decode",
        "_may_contain",
        "_messages",
        "_units",
        "count",
        "data",
        "dispatched_at",
        "first",
        "format",
        "handle",
        "held_bytes",
        "messages_replace_data",
        "next",
        "partition",
        "published_ms",
        "size",
    )

    def __init__(
        self,
        partition: Partition,
        messages: Sequence[Message] | Callable[[], Sequence[Message]],
        *,
        count: int,
        size: int,
        first: Position,
        next: Position,  # noqa: A002 - the usual word in this field
        format: str = "messages",  # noqa: A002 - likewise
        data: Any = None,
        handle: Any = None,
        held_bytes: int | None = None,
        may_contain: Callable[[bytes], bool] | None = None,
        published_ms: int | None = None,
        units: Callable[[], Sequence[Unit]] | None = None,
        messages_replace_data: bool = False,
    ) -> None:
        """`messages` are the decoded messages, or a function that decodes them on demand.

        Without `held_bytes` the batch counts as `size` bytes of memory. `may_contain` implements the method of this name; without
        it, the batch may contain any text. `units` returns the units.
        """
        self.partition = partition
        self._messages: Sequence[Message] | None = None if callable(messages) else messages
        self._decode = messages if callable(messages) else None
        self._may_contain, self._units = may_contain, units
        self.format, self.data, self.handle = format, data, handle
        self.count, self.size = count, size
        self.held_bytes = size if held_bytes is None else held_bytes
        self.first, self.next, self.messages_replace_data = first, next, messages_replace_data
        if published_ms is None and self._messages:
            published_ms = self._messages[0].publish_time
        self.published_ms = published_ms
        self.dispatched_at = 0.0

    @property
    def messages(self) -> Sequence[Message]:
        """The messages; they are decoded on first use."""
        if self._messages is None:
            assert self._decode is not None  # noqa: S101 - `_messages` or `_decode` is always set
            self._messages = self._decode()
        return self._messages

    @property
    def units(self) -> Sequence[Unit] | None:
        """The stored units that the messages come from, all in the format `format`; None if they have no such form.

        Reading can resume where a unit begins. The first unit may begin before `first`, and at the end of a range the last one
        may end after `next`: see `Unit.left_out`. A batch of a lane, or of a reader without an end, ends with a unit.
        """
        return None if self._units is None else self._units()

    @property
    def has_units(self) -> bool:
        """True if `units` is not None; costs nothing."""
        return self._units is not None

    @property
    def is_decoded(self) -> bool:
        """True while decoded messages are in memory."""
        return self._messages is not None

    def release_messages(self) -> None:
        """Drop the decoded messages; the next use of `messages` decodes them again.

        Does nothing if the batch was made from decoded messages.
        """
        if self._decode is not None:
            self._messages = None

    def keep_messages(self) -> int:
        """Decode the messages, drop the received form if they replace it, and return the bytes that the batch holds then.

        If they do not replace it, it stays, and they count in addition. Messages that refer to the received bytes instead of
        copying them keep these alive, so that `held_bytes` are in use in any case.
        """
        messages = self.messages
        if self.messages_replace_data:
            self.data = self._decode = self._may_contain = self._units = None
        if self._decode is None:
            return self.held_bytes
        return self.held_bytes + sum(len(message.payload or b"") for message in messages)

    def drop_contents(self) -> None:
        """Drop the received bytes and the messages of a batch that is acknowledged; positions and numbers stay."""
        self.data = self._decode = self._may_contain = self._units = None
        self._messages = ()

    def may_contain(self, text: bytes) -> bool:
        """Return False only if these bytes certainly do not occur in the received form; True if they occur or may occur."""
        return self._may_contain is None or self._may_contain(text)

    @classmethod
    def of(cls, messages: Sequence[Message], partition: Partition | None = None) -> "Batch":
        """Make a batch of messages that were not received from a source.

        Without a `partition` its source is NO_SOURCE, and outbounds stamp no origin on its messages. `next` is the position
        of the last message, because the position after it is unknown; no restart resumes from such a batch.
        """
        size = sum(len(message.payload or b"") for message in messages)
        first, last = (messages[0].position, messages[-1].position) if messages else ((), ())
        return cls(
            NO_SOURCE if partition is None else partition, messages, count=len(messages), size=size, first=first, next=last
        )


NO_SOURCE = Partition("", "", "", 0)
"""The source partition of messages that were not received from any source."""


class Share:
    """The part of a batch for one target partition: all messages of the batch or those at `indexes`.

    `edited` are all messages of the share, changed or not, if at least one was changed; otherwise None.

    `deliver_at` (ms since the epoch) is the time at which all of its messages are to be delivered, whatever they say themselves;
    None: they say it. Only for a cluster that delays messages (`Capabilities.delay`). A system stores units as they are with it
    if it has a place for the time in its own units; otherwise they become messages with this `deliver_at`.

    count       number of messages
    has_edits   True if `edited` were given: none of its units can be stored as it is
    is_edited   True if its messages differ from those of the batch: the outbound must then send `messages`, not `batch.data`
    held_bytes  set by `Outbound.send`: bytes of the encoded messages, which the outbound holds until the receipt
    """

    __slots__ = ("_edited", "batch", "count", "deliver_at", "has_edits", "held_bytes", "indexes", "is_edited")

    def __init__(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        edited: Sequence[Message] | None = None,
        *,
        deliver_at: int | None = None,
    ) -> None:
        self.batch, self.indexes, self._edited, self.deliver_at = batch, indexes, edited, deliver_at
        self.has_edits = edited is not None
        self.is_edited = self.has_edits or deliver_at is not None
        self.count = batch.count if indexes is None else len(indexes)
        self.held_bytes = 0

    def release_messages(self) -> None:
        """Drop the edited messages, once the share is encoded."""
        self._edited = None

    @property
    def messages(self) -> Sequence[Message]:
        """The messages of the share, in order, with their changes if it is edited."""
        if self.has_edits:
            assert self._edited is not None, "the messages of this edited share were released"  # noqa: S101 - the outbound's bug
            messages = self._edited
        else:
            messages = self.originals
        if self.deliver_at is None:
            return messages
        return [message.replace(deliver_at=self.deliver_at) for message in messages]

    @property
    def originals(self) -> Sequence[Message]:
        """The messages of the share before edits, from which dead letters are made."""
        messages = self.batch.messages
        return messages if self.indexes is None else pick(messages, self.indexes)

    @property
    def batch_indexes(self) -> Sequence[int]:
        """The indexes that the messages of the share have in the batch."""
        return range(self.batch.count) if self.indexes is None else self.indexes

    def index_in_batch(self, index: int) -> int:
        """Translate an index in the share to the index in the batch."""
        return index if self.indexes is None else self.indexes[index]

    def subset(self, indexes: Sequence[int]) -> "Share":
        """Return a share of the messages at these indexes of this share."""
        in_batch = indexes if self.indexes is None else [self.indexes[index] for index in indexes]
        edited = self.messages if self.has_edits else None
        return Share(
            self.batch,
            in_batch,
            None if edited is None else [edited[index] for index in indexes],
            deliver_at=self.deliver_at,
        )


def origin_prefix(partition: Partition, writer: str | None = None) -> str:
    """Return the prefix of `mqbridge.origin` for messages of this partition; the value is the prefix and the position.

    The value is `cluster|topic|partition|position`, or with a `writer` (see `OutboundSpec.writer`)
    `cluster|topic|partition|writer|position`. The separator `|` is percent-encoded inside the names, so that the text can be
    split again.
    """
    names = (partition.cluster, partition.topic, partition.name, *(() if writer is None else (writer,)))
    return "".join(name.replace("%", "%25").replace("|", "%7C") + "|" for name in names)


def next_origin(message: Message, stamp: str | None) -> tuple[str | None, int]:
    """Return origin and hops of the message that a gateway makes from `message`.

    `stamp` is the new origin, which adds one hop. If it is None, or the same as the message's origin, both stay unchanged.
    """
    if stamp is None or stamp == message.origin:
        return message.origin, message.hops
    return stamp, message.hops + 1


def split_origin(origin: str) -> tuple[str, str, str, Position]:
    """Split an origin into cluster, topic, partition name and position, without the writer, if it names one.

    Raises ValueError if it is not an origin.
    """
    *names, position = origin.split("|")
    if len(names) == 4:
        del names[3]  # the writer
    cluster, topic, name = (part.replace("%7C", "|").replace("%25", "%") for part in names)
    return cluster, topic, name, parse_position(position)


def position_of(origin: str | None, prefix: str) -> Position | None:
    """Return the position in `origin`; None if it does not consist of this prefix (see `origin_prefix`) and a position.

    So a prefix without a writer does not match the origins of writers.
    """
    if origin is None or not origin.startswith(prefix):
        return None
    try:
        return parse_position(origin[len(prefix) :])
    except ValueError:
        return None
