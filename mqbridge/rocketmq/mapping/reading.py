"""A stored record -> `Message`, the plain way: every record, whoever wrote it.

A record is a gateway's when it has a pair that only gateways write; all of theirs have one. Then its born timestamp is no event
time, and a UNIQ_KEY behind that pair was made by a broker for a message that had none: brokers append, ours stands before.
"""

from typing import Any

from mqbridge.mapping.reserved_properties import GATEWAY_MARKER, is_carried, read_carried
from mqbridge.message import Message, Pair
from mqbridge.rocketmq.mapping.escapes import unescape
from mqbridge.rocketmq.mapping.table import EMPTY, FLAG, IGNORED_NAMES, ORDER, SHARDED
from mqbridge.rocketmq.wire.properties import TRANSIENT_PREFIX, Name, decode
from mqbridge.rocketmq.wire.record import Record

PLACEHOLDER = b"\x00"
"""The body of a message without one."""
_FIELDS = frozenset({Name.TAGS, Name.KEYS, Name.SHARDING_KEY, Name.TIMER_DELIVER_MS})


def read(record: Record) -> Message:
    """The message of a record; its `defect` where it has one."""
    place = (record.queue_offset,)
    if record.defect is not None:
        return Message(record.body, publish_time=record.store_timestamp, position=place, defect=record.defect)
    blank = record.body == PLACEHOLDER
    parts = _Parts(record.properties, blank=blank)
    own, fields = read_carried(parts.users + parts.ours, blank=blank)
    said = native_fields(parts.system) | fields
    if not (parts.ours or parts.markers):
        said.setdefault("event_time", record.born_timestamp)
    if "key" not in said:
        said["key"] = first_key(said.get("keys", ()))
    payload = said.pop("payload", b"" if EMPTY in parts.markers else record.body)
    return Message(
        payload,
        own + _synthetic(record.flag, parts.system, said, own),
        publish_time=record.store_timestamp,
        delivery_count=record.reconsume_times,
        position=place,
        **said,
    )


def native_fields(system: dict[str, str]) -> dict[str, Any]:
    """The message fields that the system's own properties say."""
    said: dict[str, Any] = {}
    if (tag := system.get(Name.TAGS)) is not None:
        said["msg_type"] = tag
    if (keys := system.get(Name.KEYS)) is not None:
        said["keys"] = tuple(keys.split(" "))
    if (key := system.get(Name.SHARDING_KEY)) is not None:
        said["key"] = key
    time = system.get(Name.TIMER_DELIVER_MS, "")
    if time.isascii() and time.isdigit():
        said["deliver_at"] = int(time)
    return said


def first_key(keys: tuple[str, ...]) -> str | None:
    """The key of a message without __SHARDINGKEY: its first index key. KEYS with blanks side by side has empty ones."""
    return next(filter(None, keys), None)


def _synthetic(flag: int, system: dict[str, str], said: dict[str, Any], own: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Properties that stand for what no field says; not where the message has them in so many words."""
    found = []
    sharding_key = system.get(Name.SHARDING_KEY)
    if sharding_key is not None and sharding_key == first_key(said.get("keys", ())):
        found.append((SHARDED, "1"))
    if flag:
        found.append((FLAG, str(flag)))
    names = {name for name, _ in own}
    return tuple(pair for pair in found if pair[0] not in names)


class _Parts:
    """The property string taken apart.

    users     what is the user's, in order, still under `mqbridge.u.`
    ours      what a gateway carried
    markers   what a gateway says about the record itself: GATEWAY_MARKER, EMPTY, ORDER
    system    the values of the system's own properties that are message fields
    """

    __slots__ = ("markers", "ours", "system", "users")

    def __init__(self, properties: bytes, *, blank: bool) -> None:
        self.users: list[Pair] = []
        self.ours: list[Pair] = []
        self.markers: dict[str, str] = {}
        self.system: dict[str, str] = {}
        names: list[str] = []
        made = False  # whether the broker made the UNIQ_KEY, if a gateway wrote the rest
        for name, value in decode(properties):
            if name in _FIELDS:
                self.system[name] = value
            elif name in IGNORED_NAMES or name.startswith(TRANSIENT_PREFIX):
                continue
            elif is_marker(pair := unescape((name, value)), blank=blank):
                self.markers[pair[0]] = value
            elif is_carried(pair, blank=blank):
                self.ours.append(pair)
            elif name != Name.UNIQ_KEY:
                self._add(pair, name, names)
            elif Name.UNIQ_KEY not in names:
                made = bool(self.ours or self.markers)
                self._add(pair, name, names)
        if ORDER in self.markers:
            self.users = in_order(self.markers[ORDER], names, self.users)
        elif made:
            del self.users[names.index(Name.UNIQ_KEY)]

    def _add(self, pair: Pair, name: str, names: list[str]) -> None:
        self.users.append(pair)
        names.append(name)


def is_marker(pair: Pair, *, blank: bool) -> bool:
    """Whether a gateway says something about the record itself by it."""
    name, value = pair
    if name == ORDER:
        return _ranks(value) is not None
    return pair == GATEWAY_MARKER or (name == EMPTY and value == "1" and blank)


def order_of(names: list[str]) -> str:
    """The place of each name among them all sorted: what `in_order` needs. `-` for no names."""
    place = {name: rank for rank, name in enumerate(sorted(names))}
    return ",".join(str(place[name]) for name in names) or "-"


def _ranks(text: str) -> list[int] | None:
    try:
        ranks = [] if text == "-" else [int(rank) for rank in text.split(",")]
    except ValueError:
        return None
    return ranks if sorted(ranks) == list(range(len(ranks))) else None


def in_order(order: str, names: list[str], pairs: list[Pair]) -> list[Pair]:
    """The pairs as they were before a broker put them in its own order, and without the UNIQ_KEY that it made.

    Where somebody added or removed others, the order that they lie in stays.
    """
    ranks = _ranks(order) or []
    found = sorted(zip(names, pairs, strict=True), key=lambda named: named[0])
    if len(found) == len(ranks) + 1:
        found = [named for named in found if named[0] != Name.UNIQ_KEY]
    return [found[rank][1] for rank in ranks] if len(found) == len(ranks) else pairs
