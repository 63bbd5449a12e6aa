"""Stored RocketMQ record -> `Message`. If the compiled module is installed, it decodes pulls.

A pull is the response to one read request: consecutive records of one queue. A record that cannot be read becomes a raw message
of the form `rocketmq.record.v1`: its payload is the record as the broker stores it (see `wire/record.py`).
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge.mapping.raw_form import may_be_copied, raw_properties
from mqbridge.message import Message, Position
from mqbridge.native import compiled
from mqbridge.rocketmq.mapping.read_block import PLACEHOLDER, read_block
from mqbridge.rocketmq.wire.compression import decompress
from mqbridge.rocketmq.wire.record import Record

FORM = "rocketmq.record.v1"
"""The form of RocketMQ's raw messages (see `mqbridge.mapping.raw_form`)."""


class DecodablePull(Protocol):
    """The records that one pull returned: the interface of `PulledRecords` (in `client`) that decoding needs."""

    @property
    def fields(self) -> tuple[bytes, int, int, frozenset[str]]:
        """Arguments of the compiled decoder: the bytes, the first offset, the next offset, the subscribed tags.

        The decoder skips records before the first or from the next offset on, and those with a tag that is not subscribed.
        """

    @property
    def records(self) -> list[Record]:
        """The decoded records, without those that `fields` tells the decoder to skip. Raises RemoteProtocolError."""


def decode_pulls(pulls: Sequence[DecodablePull]) -> Sequence[Message]:
    """Decode consecutive pulls. Raises RemoteProtocolError for damaged bytes."""
    if compiled is not None:
        messages: Sequence[Message] | None = compiled.rocketmq_decode([pull.fields for pull in pulls], decompress)
        # None: only the plain decoder can decode these pulls. Only it makes raw messages,
        # and reads texts that are not UTF-8, which the compiled one reports as damage.
        if messages is not None and not messages.damaged():  # type: ignore[attr-defined]
            return messages
    return decode_plain(pulls)


def decode_plain(pulls: Sequence[DecodablePull]) -> list[Message]:
    """Decode like `decode_pulls`, without the compiled module."""
    return [decode_record(record) for pull in pulls for record in pull.records]


def decode(records: Sequence[Record]) -> list[Message]:
    """Decode records; a damaged record becomes a Message with its `defect`."""
    return [decode_record(record) for record in records]


def decode_record(record: Record) -> Message:
    """Decode one record; a damaged record becomes a Message with its `defect`."""
    position = (record.queue_offset,)
    if record.defect is not None:
        return _raw_message(record, position)
    # Brokers refuse an empty body. If PLACEHOLDER stands for a missing or empty payload, `fields` contains that payload.
    properties, fields, from_gateway = read_block(record.properties, flag=record.flag, blank=record.body == PLACEHOLDER)
    if not from_gateway:  # a record of a gateway has the event time in a property, or has none
        fields.setdefault("event_time", record.born_timestamp)
    return Message(
        fields.pop("payload", record.body),
        properties,
        publish_time=record.store_timestamp,
        delivery_count=record.reconsume_times,
        position=position,
        **fields,
    )


def _raw_message(record: Record, position: Position) -> Message:
    """Return the raw message of a damaged record, with copies of its keys, tag and properties."""
    raw = Message(
        record.stored_bytes(),
        raw_properties((), FORM),
        publish_time=record.store_timestamp,
        delivery_count=record.reconsume_times,
        position=position,
        defect=record.defect,
    )
    properties, fields, _ = read_block(record.properties, flag=record.flag, blank=False)
    raw.properties = raw_properties(properties, FORM)
    key, keys, msg_type = fields.get("key"), fields.get("keys", ()), fields.get("msg_type")
    if may_be_copied(key, *keys, msg_type):
        raw.key, raw.keys, raw.msg_type = key, keys, msg_type
    return raw
