"""`Message` -> property string, the plain way: every message.

    user's pairs ... [TIMER_DELIVER_MS or DELAY] [TAGS] [KEYS] [__SHARDINGKEY] what is carried ... origin, hops [mqbridge.order]

At least one pair is a gateway's, and all of the gateway's stand behind the user's: see `reading`.
"""

from collections.abc import Sequence

from mqbridge.mapping.reserved_properties import (
    GATEWAY_MARKER,
    WITHOUT,
    carry_fields,
    escape_user_property,
    origin_properties,
    read_number,
)
from mqbridge.message import Message, Pair
from mqbridge.rocketmq.mapping.escapes import escape
from mqbridge.rocketmq.mapping.reading import first_key, order_of
from mqbridge.rocketmq.mapping.table import EMPTY, FLAG, ORDER, SHARDED, TABLE
from mqbridge.rocketmq.wire.properties import Name, fault

_INT32 = range(-(1 << 31), 1 << 31)


ALWAYS_CARRIED = tuple(field for field in TABLE.carried_fields() if field not in {"origin", "hops"})
"""The fields that nothing native says; `origin_properties` writes the other two."""


class Written:
    """What a message is in RocketMQ besides its body."""

    __slots__ = ("flag", "pairs")

    def __init__(self, pairs: list[Pair], flag: int) -> None:
        self.pairs, self.flag = pairs, flag

    def encoded(self) -> bytes:
        """The property string. Raises UnicodeEncodeError for lone surrogates."""
        return "".join([f"{name}\x01{value}\x02" for name, value in self.pairs]).encode()


def write(message: Message, stamp: str | None, *, alone: bool, delay: Pair | None = None) -> Written:
    """The property string's pairs. `alone`: sent by itself, so its broker puts them in its own order; `delay`: has it hold it."""
    properties, flag, sharded = _take_synthetic(message)
    users = [escape_user_property(pair) for pair in properties]
    timed = delay is not None and delay[0] == Name.TIMER_DELIVER_MS
    ours = [*_carried(message, timed=timed), *origin_properties(message, stamp)] or [GATEWAY_MARKER]
    escaped = escape([*users, *ours])
    pairs = [*escaped[: len(users)], *_native(message, delay, sharded=sharded), *escaped[len(users) :]]
    if alone:
        pairs.append((ORDER, order_of([name for name, _ in escaped[: len(users)]])))
    return Written(pairs, flag)


def _take_synthetic(message: Message) -> tuple[Sequence[Pair], int, bool]:
    """The properties without those that `reading` makes again of the record, and what these say."""
    properties = message.properties
    flag, sharded = 0, False
    if _ends_with(properties, FLAG) and (flag := _flag(properties[-1][1])):
        properties = properties[:-1]
    if _ends_with(properties, SHARDED) and properties[-1][1] == "1" and _is_writable(message.key) and _is_derived(message):
        sharded, properties = True, properties[:-1]
    return properties, flag, sharded


def _ends_with(properties: Sequence[Pair], name: str) -> bool:
    """Whether the last property and no other has this name."""
    return bool(properties) and [place for place, pair in enumerate(properties, 1) if pair[0] == name] == [len(properties)]


def _flag(text: str) -> int:
    try:
        value = read_number(text)
    except ValueError:
        return 0
    return value if value in _INT32 else 0


def _is_derived(message: Message) -> bool:
    """Whether a reader takes the key from the index keys."""
    return message.key == first_key(message.keys)


def _is_writable(text: str | bytes | None) -> bool:
    return isinstance(text, str) and fault("value", text) is None


def _native(message: Message, delay: Pair | None, *, sharded: bool) -> list[Pair]:
    """The system's own properties."""
    pairs = [] if delay is None else [delay]
    said = (
        (Name.TAGS, message.msg_type),
        (Name.KEYS, " ".join(message.keys) or None),
        (Name.SHARDING_KEY, None if _is_derived(message) and not sharded else message.key),
    )
    return pairs + [(name, value) for name, value in said if isinstance(value, str) and _is_writable(value)]


def _carried(message: Message, *, timed: bool) -> list[Pair]:
    """What is not said natively, or not exactly: a level is no time."""
    fields = [*ALWAYS_CARRIED, "event_time", "payload"]
    joined = " ".join(message.keys)
    if message.msg_type is not None and not _is_writable(message.msg_type):
        fields.append("msg_type")
    if message.keys and not (_is_writable(joined) and tuple(joined.split(" ")) == message.keys):
        fields.append("keys")
    if not (_is_derived(message) or _is_writable(message.key)):
        fields.append("key")
    if not timed:
        fields.append("deliver_at")
    pairs = carry_fields(message, fields)
    if message.payload == b"":
        pairs.append((EMPTY, "1"))
    if message.key is None and not _is_derived(message):
        pairs.append((WITHOUT, "key"))
    return pairs
