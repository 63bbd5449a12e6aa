"""A message as a TubeMQ producer sent it, read no further than somebody asks.

Its attribute string says everything but the body. `$msgType$` and `$msgTime$` are the system's own pairs among the user's.
"""

from datetime import datetime, tzinfo

from mqbridge.attributes import MEMO_ENTRIES, read_pairs
from mqbridge.message import Message, Pair, Position
from mqbridge.tubemq.fields import MSG_TIME, MSG_TYPE

MSG_TIME_DIGITS = 12

_TIME_ITEM = b"$msgTime$="
_TIME_ITEM_BYTES = len(_TIME_ITEM) + MSG_TIME_DIGITS


class Minutes(dict[bytes, int]):
    """Times by `$msgTime$` items with the commas around them, in one zone; bounded like every memo."""

    def __init__(self, zone: tzinfo) -> None:
        super().__init__()
        self._zone = zone

    def read(self, text: str) -> int | None:
        """Milliseconds since the epoch of twelve digits; None for anything else."""
        item = _TIME_ITEM + text.encode()
        if (known := self.get(item)) is not None:
            return known
        if len(text) != MSG_TIME_DIGITS or not (text.isascii() and text.isdigit()):
            return None
        try:
            # strptime would take "2026112 3 4" apart as well; fixed places do not.
            parts = (int(text[:4]), int(text[4:6]), int(text[6:8]), int(text[8:10]), int(text[10:]))
            value = int(datetime(*parts, tzinfo=self._zone).timestamp()) * 1000
        except (ValueError, OverflowError):
            return None
        if len(self) >= MEMO_ENTRIES:
            self.clear()
        for key in (item, item + b",", b"," + item, b"," + item + b","):
            self[key] = value
        return value


_minutes: dict[tzinfo, Minutes] = {}


def minutes_of(zone: tzinfo) -> Minutes:
    """The memo of a zone."""
    return _minutes.get(zone) or _minutes.setdefault(zone, Minutes(zone))


def system_fields(properties: tuple[Pair, ...], minutes: Minutes) -> tuple[str | None, int | None]:
    """Type and time: the first of each, as native readers take them. SDKs write them first, so the rest is seldom looked at."""
    msg_type = minute = None
    for key, value in properties:
        if key == MSG_TYPE:
            msg_type = value if msg_type is None else msg_type
        elif key == MSG_TIME:
            minute = value if minute is None else minute
        else:
            continue
        if msg_type is not None and minute is not None:
            break
    return msg_type, None if minute is None else minutes.read(minute)


class NativeMessage(Message):
    """A message as it came from a TubeMQ producer: its attribute string says all there is besides the body.

    Pairs, type and time are read from the string when they are asked for, which a target that takes the string apart itself
    never does. The other fields are constants of the class, so that making one of these sets four slots and not fifteen.
    """

    __slots__ = ("_minutes",)

    only_attributes = True
    key = ordering_key = publish_time = deliver_at = origin = defect = None
    keys: tuple[str, ...] = ()
    delivery_count = hops = 0

    def __init__(self, payload: bytes, attributes: bytes, position: Position, minutes: Minutes) -> None:
        self.payload = payload
        self.attributes = attributes
        self.position = position
        self._minutes = minutes

    @property
    def properties(self) -> tuple[Pair, ...]:  # type: ignore[override]
        """Every pair of the string."""
        return read_pairs(self.attributes or b"")

    @property
    def msg_type(self) -> str | None:  # type: ignore[override]
        """The value of `$msgType$`."""
        return system_fields(self.properties, self._minutes)[0]

    @property
    def event_time(self) -> int | None:  # type: ignore[override]
        """The minute of `$msgTime$` in ms since the epoch."""
        text: bytes = self.attributes  # type: ignore[assignment]  # never None here
        at = text.find(_TIME_ITEM)
        if at < 0:
            return None
        try:
            # With the commas around it, so that what is found in the memo was a whole item there.
            return self._minutes[text[at - 1 if at else 0 : at + _TIME_ITEM_BYTES + 1]]
        except KeyError:
            return system_fields(self.properties, self._minutes)[1]
