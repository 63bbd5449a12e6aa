"""Units of the format `rocketmq.record`: one message each, as a record in neutral form (see `wire/neutral_record.py`).

`Unit.published_ms` is the time at which a broker stored the message, as `Message.publish_time` is.
"""

from collections.abc import Iterable, Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.raw_form import raw_properties
from mqbridge.message import Message, Position, Unit
from mqbridge.rocketmq.mapping.stored import FORM, DecodablePull, decode_record
from mqbridge.rocketmq.wire.neutral_record import neutral_records
from mqbridge.rocketmq.wire.record import are_records, decode_records, split_records

NAME = "rocketmq.record"


class RecordFormat:
    """The format of RocketMQ's units."""

    name = NAME

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the messages of the unit, with the fields that a lane's messages have; raises nothing.

        The unit has one message. One with another number of messages is damaged, and so is each of them.
        """
        try:
            records = decode_records(unit.data)
        except RemoteProtocolError as error:
            return [_damaged(unit, position, str(error)) for position in positions]
        if len(records) != len(positions):
            problem = f"a unit of {len(positions)} messages has {len(records)} records"
            return [_damaged(unit, position, problem) for position in positions]
        messages = [decode_record(record) for record in records]
        for message, position in zip(messages, positions, strict=True):
            message.position, message.publish_time = position, unit.published_ms
        return messages

    def are_whole(self, units: Sequence[bytes]) -> bool:
        """Return True if each of these is one record, as its size says."""
        return are_records(units)

    def split(self, data: bytes) -> Sequence[bytes]:
        """Return the bytes of each record. Raises RemoteProtocolError."""
        return split_records(data)


FORMATS = (RecordFormat(),)
"""The formats that the adapter registers."""


def units_of(pulls: Iterable[DecodablePull]) -> list[Unit]:
    """Return the messages of consecutive pulls as units. Raises RemoteProtocolError for damaged bytes."""
    return [
        Unit(data, 1, stored_ms or None, (offset,)) for pull in pulls for data, offset, stored_ms in neutral_records(*pull.fields)
    ]


def _damaged(unit: Unit, position: Position, problem: str) -> Message:
    """Return the raw message of a unit that cannot be read."""
    return Message(
        unit.data,
        raw_properties((), FORM),
        publish_time=unit.published_ms,
        position=position,
        defect=f"the unit cannot be read: {problem}",
    )
