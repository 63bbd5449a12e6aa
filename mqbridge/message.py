"""The one internal form of a message, and the batch that moves through the gateway.

A batch is a run of consecutive messages of one source partition. It becomes `Message` objects only when somebody asks, and
nothing in the gateway handles messages one by one: no task, future or log line per message.

Properties are an ordered tuple of pairs, not a mapping: Pulsar and TubeMQ both allow a key twice, and order is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

Position = tuple[int, ...]
"""A place in a partition, ordered as tuples are.

TubeMQ (offset of the pack, index in it), Pulsar (ledger, entry, batch index), RocketMQ and log (offset,).
"""

Pair = tuple[str, str]

RESERVED_PREFIX = "mqbridge."
"""Properties under this prefix are the gateway's own; see `docs/mapping.md`."""
MSG_TYPE, MSG_TIME = "$msgType$", "$msgTime$"
"""The pairs of an attribute string that say a message's type and time; as properties they keep these names in every system."""


def format_position(position: Position) -> str:
    """`(12, 3)` as `12:3`."""
    if len(position) == 2:  # once per message: a third of the general way's time
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
        return next((value for name, value in self.properties if name == key), None)

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items() if value not in (None, (), 0))
        return f"Message({said if len(said) <= 300 else said[:300] + '…'})"


# Every field in the order in which the constructor takes them: a quarter of the time that names and a mapping take.
_fields = attrgetter(*Message.__init__.__code__.co_varnames[1 : 1 + len(Message.__slots__)])


class Batch:
    """Consecutive messages of one source partition.

    `first` is the position of its first message and `next` the position that follows its last one (what a restart would
    resume from). `size` is its cost in bytes for the budgets. `native` is whatever its inbound needs to acknowledge it.
    """

    __slots__ = ("_decode", "_messages", "count", "first", "native", "next", "partition", "size")

    def __init__(
        self,
        partition: Partition,
        messages: Sequence[Message] | Callable[[], Sequence[Message]],
        *,
        count: int,
        size: int,
        first: Position,
        next: Position,  # noqa: A002 - the field's word for it
        native: Any = None,
    ) -> None:
        self.partition = partition
        self._messages: Sequence[Message] | None = None if callable(messages) else messages
        self._decode = messages if callable(messages) else None
        self.count = count
        self.size = size
        self.first = first
        self.next = next
        self.native = native

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, decoded when first asked for."""
        if self._messages is None:
            assert self._decode is not None  # noqa: S101 - one of the two is always set
            self._messages = self._decode()
            self._decode = None
        return self._messages


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
