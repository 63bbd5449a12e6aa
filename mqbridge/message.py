"""The one internal form of a message, and the batch that moves through the gateway.

A batch is a run of consecutive messages of one source partition. It becomes `Message` objects only when somebody asks, and
nothing in the gateway handles messages one by one: no task, future or log line per message.

Properties are an ordered tuple of pairs, not a mapping: Pulsar and TubeMQ both allow a key twice, and order is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mqbridge.native import pick

Position = tuple[int, ...]
"""A place in a partition, ordered as tuples are.

TubeMQ (an offset, messages of the partition behind it), Pulsar (ledger, entry, batch index), RocketMQ and log (offset,).
"""

Pair = tuple[str, str]

RESERVED_PREFIX = "mqbridge."
"""Properties under this prefix are the gateway's own; see `docs/mapping.md`."""
MSG_TYPE, MSG_TIME = "$msgType$", "$msgTime$"
"""The pairs of an attribute string that say a message's type and time; as properties they keep these names in every system."""


def format_position(position: Position) -> str:
    """`(12, 3)` as `12:3`."""
    if len(position) == 3:  # once per message: a third of the general way's time
        return f"{position[0]}:{position[1]}:{position[2]}"
    if len(position) == 2:
        return f"{position[0]}:{position[1]}"
    if len(position) == 1:
        return str(position[0])
    return ":".join(map(str, position))


def parse_position(text: str) -> Position:
    """Read `12:3` back; raises ValueError on anything else."""
    return tuple(map(int, text.split(":")))


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a topic of a cluster.

    `name` is the system's own spelling (TubeMQ `broker:partition`, RocketMQ `broker:queue`, Pulsar and log the number); `index`
    is its place in the topic's sorted list of partitions, which is what partition mapping by identity goes by.
    """

    cluster: str
    topic: str
    name: str
    index: int

    def __str__(self) -> str:
        return f"{self.cluster}/{self.topic}/{self.name}"


class Message:
    """One message. Made by a system's mapping; plain slots because one is made per message on the hot path.

    payload        bytes, or None for a tombstone
    properties     ordered pairs of text
    key            routing key: text, or bytes where the source had a binary one
    ordering_key   bytes
    keys           index keys
    msg_type       TubeMQ's message type, RocketMQ's tag
    attributes     TubeMQ's free attribute string, byte for byte; None where the message never had one
    event_time     ms since the epoch
    publish_time   ms since the epoch, when the source's producer or broker stamped it
    deliver_at     ms since the epoch
    delivery_count how often it was delivered before
    position       its place in the source partition
    origin         what an earlier pass through a gateway stamped on it (`mqbridge.origin`)
    hops           how many gateways it passed through before
    defect         why it could not be read properly; payload then holds the raw bytes. Such a message is never delivered.
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
        """Every field by name."""
        return {name: getattr(self, name) for name in Message.__slots__}

    def replace(self, **changes: Any) -> "Message":
        """A copy with some fields changed."""
        copy = Message(*_fields(self))
        for field, value in changes.items():
            setattr(copy, field, value)
        return copy

    def property(self, key: str) -> str | None:
        """The first value under this key."""
        for name, value in self.properties:  # a fourth of the time of a generator where it is the first
            if name == key:
                return value
        return None

    def property_values(self, key: str) -> list[str]:
        """All values under this key."""
        return [value for name, value in self.properties if name == key]

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items() if value not in (None, (), 0))
        return f"Message({said if len(said) <= 300 else said[:300] + '…'})"


# Every field in the order in which the constructor takes them: a quarter of the time that names and a mapping take.
_fields = attrgetter(*Message.__init__.__code__.co_varnames[1 : 1 + len(Message.__slots__)])


class Batch:
    """Consecutive messages of one source partition, as they arrived.

    format      what `data` is, such as `pulsar.entries`; `messages` where there is nothing but messages
    data        the native form that encoders of that format take
    count       how many messages it has
    size        their bytes, for rates and metrics
    held_bytes  what the batch holds in memory, for budgets
    first       the position of its first message
    next        the position behind its last one: what a restart would resume from
    handle      what its inbound needs to acknowledge it
    published_ms  when its first message was published (ms since the epoch), None where only decoding would tell
    received_at   when a lane began to deliver it, loop time
    """

    __slots__ = (
        "_decode",
        "_mentions",
        "_messages",
        "count",
        "data",
        "first",
        "format",
        "handle",
        "held_bytes",
        "next",
        "partition",
        "published_ms",
        "received_at",
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
        next: Position,  # noqa: A002 - the field's word for it
        format: str = "messages",  # noqa: A002 - likewise
        data: Any = None,
        handle: Any = None,
        held_bytes: int | None = None,
        mentions: Callable[[bytes], bool] | None = None,
        published_ms: int | None = None,
    ) -> None:
        self.partition = partition
        self._messages: Sequence[Message] | None = None if callable(messages) else messages
        self._decode = messages if callable(messages) else None
        self._mentions = mentions
        self.format, self.data, self.handle = format, data, handle
        self.count, self.size = count, size
        self.held_bytes = size if held_bytes is None else held_bytes
        self.first, self.next = first, next
        if published_ms is None and self._messages:
            published_ms = self._messages[0].publish_time
        self.published_ms = published_ms
        self.received_at = 0.0

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, decoded when first asked for."""
        if self._messages is None:
            assert self._decode is not None  # noqa: S101 - one of the two is always set
            self._messages = self._decode()
        return self._messages

    @property
    def is_decoded(self) -> bool:
        """Whether its messages are in memory."""
        return self._messages is not None

    def let_go(self) -> None:
        """Forget the messages; whoever asks again has them decoded again."""
        if self._decode is not None:
            self._messages = None

    def mentions(self, text: bytes) -> bool:
        """Whether these bytes may stand anywhere in it; looks at the native form. True where nobody can tell."""
        return self._mentions is None or self._mentions(text)

    @classmethod
    def of(cls, messages: Sequence[Message], partition: Partition | None = None) -> "Batch":
        """Messages that somebody made, for an outbound that stamps no origin or as if they came from `partition`."""
        size = sum(len(message.payload or b"") for message in messages)
        first, last = (messages[0].position, messages[-1].position) if messages else ((), ())
        return cls(NOWHERE if partition is None else partition, messages, count=len(messages), size=size, first=first, next=last)


NOWHERE = Partition("", "", "", 0)
"""Where messages come from that came from no source."""


class Share:
    """What of a batch goes to one target partition: all `count` messages or those at `indexes`; as they came, or `edited`.

    is_edited   whether its messages differ from those of the batch: then nothing but they may be written
    held_bytes  once it is sent: what its outbound holds until the receipt besides the batch, such as bodies that came compressed
    """

    __slots__ = ("_edited", "batch", "count", "held_bytes", "indexes", "is_edited")

    def __init__(self, batch: Batch, indexes: Sequence[int] | None = None, edited: Sequence[Message] | None = None) -> None:
        self.batch, self.indexes, self._edited = batch, indexes, edited
        self.is_edited = edited is not None
        self.count = batch.count if indexes is None else len(indexes)
        self.held_bytes = 0

    def let_go(self) -> None:
        """Forget the edited messages: it is encoded, nobody asks for them again."""
        self._edited = None

    @property
    def messages(self) -> Sequence[Message]:
        """Its messages, in order."""
        if self.is_edited:
            assert self._edited is not None, "an edited share was let go"  # noqa: S101 - a bug of an outbound
            return self._edited
        messages = self.batch.messages
        return messages if self.indexes is None else pick(messages, self.indexes)

    @property
    def originals(self) -> Sequence[Message]:
        """Its messages as they came, before edits: what a dead letter keeps."""
        messages = self.batch.messages
        return messages if self.indexes is None else pick(messages, self.indexes)

    @property
    def places(self) -> Sequence[int]:
        """Where its messages are in the batch."""
        return range(self.batch.count) if self.indexes is None else self.indexes

    def index_in_batch(self, index: int) -> int:
        """Where the message at this index of the share is in the batch."""
        return index if self.indexes is None else self.indexes[index]

    def part(self, places: Sequence[int]) -> "Share":
        """The messages at these indexes of the share."""
        indexes = places if self.indexes is None else [self.indexes[place] for place in places]
        return Share(self.batch, indexes, [self.messages[place] for place in places] if self.is_edited else None)


def origin_prefix(partition: Partition) -> str:
    """What `mqbridge.origin` begins with for messages of this partition; the message's position follows it.

    `|` separates, and is percent-encoded inside the names, so that the text can be taken apart again.
    """
    names = (partition.cluster, partition.topic, partition.name)
    return "".join(name.replace("%", "%25").replace("|", "%7C") + "|" for name in names)


def split_origin(origin: str) -> tuple[str, str, str, Position]:
    """Cluster, topic, partition name and position of an origin text. Raises ValueError when it is none."""
    *names, position = origin.split("|")
    cluster, topic, name = (part.replace("%7C", "|").replace("%25", "%") for part in names)
    return cluster, topic, name, parse_position(position)


def position_of(origin: str | None, source: Partition) -> Position | None:
    """The position that an origin names in this source partition; None where it names none, or another partition."""
    if origin is None or not origin.startswith(prefix := origin_prefix(source)):
        return None
    try:
        return parse_position(origin[len(prefix) :])
    except ValueError:
        return None
