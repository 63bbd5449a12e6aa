r"""Reading and writing the ordinary message fast; `reading` and `writing` are the plain ways, and the reference in tests.

Items of property strings (`name \x01 value`) repeat from message to message, so what they mean is remembered. What is not
ordinary is left to the plain ways.
"""

from typing import Any

from mqbridge.attributes import MEMO_CHARS, MEMO_ENTRIES
from mqbridge.carried import ATTRIBUTES, BUILT, EVENT_TIME, HOPS, ORIGIN
from mqbridge.message import RESERVED_PREFIX, Message, Pair
from mqbridge.rocketmq.fields import FLAG, IGNORED_NAMES, SHARDED, is_plain
from mqbridge.rocketmq.reading import PLACEHOLDER, first_key, read
from mqbridge.rocketmq.wire.properties import TRANSIENT_PREFIX, Name, fault
from mqbridge.rocketmq.wire.record import Record
from mqbridge.rocketmq.writing import write

_TAGS, _KEYS, _UNIQUE, _SHARDING, _TIMER = (
    name.encode() for name in (Name.TAGS, Name.KEYS, Name.UNIQ_KEY, Name.SHARDING_KEY, Name.TIMER_DELIVER_MS)
)
_ORIGIN, _ATTRIBUTES, _TIME, _BUILT = ORIGIN.encode(), ATTRIBUTES.encode(), EVENT_TIME.encode(), BUILT[0].encode()
_OURS = RESERVED_PREFIX.encode()
_SIMPLE = frozenset({_ORIGIN, _ATTRIBUTES, _TIME, _BUILT})
"""What most messages of a gateway have, and nothing else."""
_SYSTEM = frozenset({_KEYS, _TAGS, _SHARDING, _TIMER})

_items: dict[bytes, Pair | tuple[()]] = {}
"""What an item is: a user's pair, or nothing that is copied."""
_written: dict[Pair, bytes] = {}
"""An ordinary pair as it stands in a property string."""


class RecordMessage(Message):
    """A message whose property string is taken apart when somebody asks; at once where a gateway wrote it, see `read_stamped`.

    A target that takes the string apart itself finds it in `record`.
    """

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record
        self.payload = record.body
        self.position = (record.queue_offset,)
        self.event_time = record.born_timestamp
        self.publish_time = record.store_timestamp
        self.delivery_count = record.reconsume_times
        self.attributes = self.ordering_key = self.origin = self.defect = None
        self.hops = 0

    def __getattr__(self, name: str) -> Any:
        """Called for a slot that is not filled yet: one that the property string says. Fills all of these."""
        if name not in _LAZY:
            raise AttributeError(name)
        self.take_apart()
        return getattr(self, name)

    def take_apart(self) -> bool:  # noqa: C901, PLR0912 - per message; calls cost more
        """Fill the slots that the property string says; False when it holds what only the plain way can read."""
        pairs: list[Pair] = []
        ours: dict[bytes, bytes] = {}
        append, get = pairs.append, _items.get
        system: dict[bytes, bytes] = {}
        unique = False
        for item in self.record.properties.split(b"\x02"):
            pair = get(item)
            if pair:
                append(pair)
                continue
            if pair is not None:
                continue
            name, _, value = item.partition(b"\x01")
            if name == _UNIQUE:
                # Every message has another one: not worth remembering. Behind what is ours it is the broker's.
                if value and not unique and not ours:
                    append((Name.UNIQ_KEY, value.decode()))
                    unique = True
            elif name in _SYSTEM:
                if value:
                    system[name] = value
            elif name.startswith(_OURS):
                if name not in _SIMPLE or name in ours or not value:
                    return False
                ours[name] = value
            elif pair := _remember(item, name, value):
                append(pair)
        if ours and not self._take_ours(ours):
            return False
        self.msg_type = self.key = self.deliver_at = None
        self.keys = ()
        if system:
            self._say(system, pairs)
        if self.record.flag:
            append((FLAG, str(self.record.flag)))
        self.properties = tuple(pairs)
        return True

    def _take_ours(self, ours: dict[bytes, bytes]) -> bool:
        """Fill what a gateway carried; False when some of it is to be read plainly."""
        self.event_time = None
        for name, value in ours.items():
            if name == _ORIGIN:
                self.origin, self.hops = value.decode(), 1
            elif name == _ATTRIBUTES:
                self.attributes = value
            elif name == _TIME and value.isdigit() and (value[:1] != b"0" or value == b"0"):
                self.event_time = int(value)
            elif name != _BUILT or value != b"1":
                return False
        return True

    def _say(self, system: dict[bytes, bytes], pairs: list[Pair]) -> None:
        """Fill what the system's own properties say."""
        if (tag := system.get(_TAGS)) is not None:
            self.msg_type = tag.decode()
        if (keys := system.get(_KEYS)) is not None:
            self.keys = tuple(keys.decode().split(" "))
            self.key = self.keys[0] or first_key(self.keys)
        if (key := system.get(_SHARDING)) is not None:
            text = key.decode()
            if text == self.key:
                pairs.append((SHARDED, "1"))
            self.key = text
        if (time := system.get(_TIMER)) is not None and time.isdigit():
            self.deliver_at = int(time)


_LAZY = frozenset({"properties", "msg_type", "key", "keys", "deliver_at"})
"""The slots that the property string says."""


def read_stamped(record: Record) -> Message:
    """The message of a record that has a name of ours in its properties."""
    if record.body != PLACEHOLDER:
        message = RecordMessage(record)
        if message.take_apart():
            return message
    return read(record)


def _remember(item: bytes, name: bytes, value: bytes) -> Pair | tuple[()]:
    if len(_items) >= MEMO_ENTRIES:
        _items.clear()
    text = name.decode()
    ignored = not (name and value) or text in IGNORED_NAMES or text.startswith(TRANSIENT_PREFIX)
    pair: Pair | tuple[()] = () if ignored else (text, value.decode())
    _items[item] = pair
    return pair


def write_ordinary(message: Message, stamp: str | None) -> tuple[bytes, int]:  # noqa: C901, PLR0912 - per message; calls cost more
    """Property string and flag of a message in a batch: the same as `write` gives. Raises UnicodeEncodeError."""
    properties, keys, key = message.properties, message.keys, message.key
    count = len(properties)
    if (
        not message.payload
        or message.ordering_key is not None
        or message.deliver_at is not None
        or (count > 1 and len(dict(properties)) != count)
    ):
        return _plainly(message, stamp)
    get = _written.get
    tail = []
    if (tag := message.msg_type) is not None:
        tail.append(f"TAGS\x01{tag}\x02")
    first = None
    if keys:
        joined = " ".join(keys)
        first = keys[0]
        if not first or key is None or ((len(keys) > 1 or " " in joined) and tuple(joined.split(" ")) != keys):
            return _plainly(message, stamp)
        tail.append(f"KEYS\x01{joined}\x02")
    if key != first:
        if key.__class__ is not str:
            return _plainly(message, stamp)
        tail.append(f"__SHARDINGKEY\x01{key}\x02")
    native = len(tail)
    if (attributes := message.attributes) is not None:
        try:
            tail.append(f"{ATTRIBUTES}\x01{attributes.decode()}\x02")
        except UnicodeDecodeError:
            return _plainly(message, stamp)
    if (time := message.event_time) is not None:
        tail.append(f"{EVENT_TIME}\x01{time}\x02")
    origin, hops = (message.origin, message.hops) if stamp is None else (stamp, message.hops + 1)
    if origin is not None:
        tail.append(f"{ORIGIN}\x01{origin}\x02")
        if hops > 1:
            tail.append(f"{HOPS}\x01{hops}\x02")
    if len(tail) == native:
        tail.append(_MADE)
    count += len(tail)
    data = b"".join([get(pair) or _write_pair(pair) for pair in properties]) + "".join(tail).encode()
    # A separator inside a text shows in the counts, an empty text in the tail by two side by side; a pair that is not ordinary is
    # missing.
    if data.count(b"\x01") != count or data.count(b"\x02") != count or b"\x01\x02" in data:
        return _plainly(message, stamp)
    return data, 0


_MADE = f"{BUILT[0]}\x01{BUILT[1]}\x02"


def _plainly(message: Message, stamp: str | None) -> tuple[bytes, int]:
    written = write(message, stamp, alone=False, delayed=False)
    return written.encoded(), written.flag


def _write_pair(pair: Pair) -> bytes:
    """The pair as it stands in a property string; nothing when it has to be escaped, or may mean something to `writing`."""
    name, value = pair
    if name == Name.UNIQ_KEY and value:
        return f"UNIQ_KEY\x01{value}\x02".encode()  # another one in every message; a separator inside shows in the counts
    if fault(name, value) is not None or name.startswith(RESERVED_PREFIX) or not is_plain(name):
        return b""
    data = f"{name}\x01{value}\x02".encode()
    if len(value) <= MEMO_CHARS:
        if len(_written) >= MEMO_ENTRIES:
            _written.clear()
        _written[pair] = data
    return data
