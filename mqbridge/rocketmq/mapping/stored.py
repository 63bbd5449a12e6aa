"""A stored RocketMQ record -> `Message`."""

from collections.abc import Sequence

from mqbridge.message import Message
from mqbridge.rocketmq.mapping.fast import read_records
from mqbridge.rocketmq.mapping.properties import PLACEHOLDER, read_block
from mqbridge.rocketmq.wire.record import Record


def decode(records: Sequence[Record]) -> list[Message]:
    """The messages of records; a damaged record becomes a Message with its `defect`."""
    return read_records(records, read)


def read(record: Record) -> Message:
    """The message of one record, plain."""
    position = (record.queue_offset,)
    if record.defect is not None:
        return Message(record.body, publish_time=record.store_timestamp, position=position, defect=record.defect)
    properties, fields, from_gateway = read_block(record.properties, flag=record.flag, blank=record.body == PLACEHOLDER)
    if not from_gateway:
        fields.setdefault("event_time", record.born_timestamp)
    return Message(
        fields.pop("payload", record.body),
        properties,
        publish_time=record.store_timestamp,
        delivery_count=record.reconsume_times,
        position=position,
        **fields,
    )
