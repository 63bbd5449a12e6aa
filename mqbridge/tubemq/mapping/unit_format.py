"""Units of the format `tubemq.message`: one message each, with its data and its flag.

    offset  size  field   big-endian
    0       4     size    of the unit in bytes, this field included
    4       4     flag    bit 0 is set if the data begins with an attribute block (see `wire/payload.py`)
    8       ...   data    SendMessageRequestP2B.data, which is TransferedMessage.payLoadData

`Unit.published_ms` is the time at which a server stored the message.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC
from itertools import chain
from struct import Struct

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.raw_form import raw_properties
from mqbridge.message import Message, Position, Unit
from mqbridge.tubemq.mapping.properties import read_message
from mqbridge.tubemq.mapping.times import msg_times_of
from mqbridge.tubemq.wire.payload import split_payload

NAME = "tubemq.message"
UNIT_FORM = "tubemq.unit.v1"
"""The form of the raw message of a damaged unit (see `mqbridge.mapping.raw_form`): the payload is the unit."""

_HEADER = Struct(">ii")
HEADER_BYTES = _HEADER.size
MIN_UNIT_BYTES = HEADER_BYTES
_unpack_size = Struct(">i").unpack_from
_MSG_TIMES = msg_times_of(UTC)
"""Times by `$msgTime$` value, in the default time zone of clusters."""


class MessageFormat:
    """The format of TubeMQ's units."""

    name = NAME

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the message of the unit, with the fields that a lane's messages have; raises nothing.

        `$msgTime$` is a minute in UTC. The unit has one message. One with another number of messages is damaged, and so is each
        of them.
        """
        try:
            flag, data = split_unit(unit.data)
        except RemoteProtocolError as error:
            return [_damaged(unit, position, str(error)) for position in positions]
        if len(positions) != 1:
            problem = f"it has one message, and not {len(positions)}"
            return [_damaged(unit, position, problem) for position in positions]
        attributes, body = split_payload(data, flag)
        if attributes is None:
            return [Message(body, publish_time=unit.published_ms, position=positions[0])]
        message = read_message(attributes, body, positions[0], _MSG_TIMES)
        message.publish_time = unit.published_ms
        return [message]

    def are_whole(self, units: Sequence[bytes]) -> bool:
        """Return True if each of these is one unit, as its size says."""
        sizes = [*map(len, units)]
        return min(sizes, default=MIN_UNIT_BYTES) >= MIN_UNIT_BYTES and [*chain(*map(_unpack_size, units))] == sizes

    def split(self, data: bytes) -> Sequence[bytes]:
        """Return the bytes of each unit. Raises RemoteProtocolError."""
        found: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            size = int.from_bytes(data[at : at + 4], "big")
            if not MIN_UNIT_BYTES <= size <= end - at:
                raise RemoteProtocolError(f"byte {at} of units: a unit of {size} bytes in {end - at} bytes")
            found.append(data[at : at + size])
            at += size
        return found


FORMATS = (MessageFormat(),)
"""The formats that the adapter registers."""


def unit_of_data(data: bytes, flag: int) -> Unit:
    """Return a message as a unit without a publish time: its store sets it. `flag` is an int32."""
    return Unit(_HEADER.pack(HEADER_BYTES + len(data), flag) + data, 1, None)


def units_of_data(messages: Iterable[tuple[bytes, int]]) -> list[Unit]:
    """Return messages, as pairs of data and flag, as units like `unit_of_data`."""
    make, pack = tuple.__new__, _HEADER.pack  # `Unit(*values)` takes twice the time
    return [make(Unit, (pack(HEADER_BYTES + len(data), flag) + data, 1, None, (), 0)) for data, flag in messages]


def split_unit(data: bytes) -> tuple[int, bytes]:
    """Return the flag and the data of a unit. Raises RemoteProtocolError for bytes that are no unit."""
    total = len(data)
    if total < MIN_UNIT_BYTES:
        raise RemoteProtocolError(f"it has {total} bytes, and a unit has {MIN_UNIT_BYTES} at least")
    size, flag = _HEADER.unpack_from(data)
    if size != total:
        raise RemoteProtocolError(f"its size is {size}, and it has {total} bytes")
    return flag, data[HEADER_BYTES:]


def _damaged(unit: Unit, position: Position, problem: str) -> Message:
    """Return the raw message of a unit that cannot be read."""
    return Message(
        unit.data,
        raw_properties((), UNIT_FORM),
        publish_time=unit.published_ms,
        position=position,
        defect=f"the unit cannot be read: {problem}",
    )
