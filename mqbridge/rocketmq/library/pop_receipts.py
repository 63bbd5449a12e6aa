"""Receipts of popped messages: finds the receipt of each record, and encodes receipts to acknowledge several at once."""

from collections.abc import Iterable, Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.client.pulled_records import property_of
from mqbridge.rocketmq.client.subscription import RETRY_PREFIX
from mqbridge.rocketmq.wire.bodies.pop import BatchAck
from mqbridge.rocketmq.wire.headers.pop import PopResult
from mqbridge.rocketmq.wire.properties import NAME_END, Name
from mqbridge.rocketmq.wire.receipts import (
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    parse_message_offsets,
    parse_receipt,
    parse_start_offsets,
)
from mqbridge.rocketmq.wire.record import Record

_RECEIPT = f"{Name.POP_CK}{NAME_END}".encode()


def popped_topic(group: str, topic: str, retry: str) -> str:
    """Return the topic in the acknowledgement of a message: the topic itself, or one of the group's two retry topics."""
    return {NORMAL: topic, RETRY_V1: f"{RETRY_PREFIX}{group}_{topic}", RETRY_V2: f"{RETRY_PREFIX}{group}+{topic}"}[retry]


def make_receipts(broker: str, header: PopResult, records: Sequence[Record]) -> list[Receipt]:
    """Return the receipt of each record. Raises RemoteProtocolError if the response lists no offset for a record.

    The n-th record of a queue, by offset, has the n-th offset in the response's list. A redelivered record has its receipt as a
    property, because its topic and offset are those of its first delivery.
    """
    starts = parse_start_offsets(header.start_offset_info)
    listed = parse_message_offsets(header.msg_offset_info)
    stored = [property_of(record, _RECEIPT) for record in records]
    keys = [(_source_of(record.topic), record.queue_id) for record in records]
    offsets: dict[tuple[str, int], list[int]] = {}
    for record, key, text in zip(records, keys, stored, strict=True):
        if text is None:
            offsets.setdefault(key, []).append(record.queue_offset)
    indexes = {key: {offset: index for index, offset in enumerate(sorted(found))} for key, found in offsets.items()}
    receipts = []
    for record, key, text in zip(records, keys, stored, strict=True):
        if text is not None:
            receipts.append(parse_receipt(text.decode(errors="replace")))
            continue
        try:
            start, offset = starts[key], listed[key][indexes[key][record.queue_offset]]
        except (KeyError, IndexError) as error:
            lists = f"{header.start_offset_info!r}, {header.msg_offset_info!r}"
            raise RemoteProtocolError(f"the offset lists of the response lack the popped {record!r}: {lists}") from error
        source, queue = key
        receipts.append(Receipt(start, header.pop_time, header.invisible_time, header.revive_qid, source, broker, queue, offset))
    return receipts


def _source_of(topic: str) -> str:
    """Return NORMAL for a topic, else the spelling of the retry topic: topic names have no `+`, so it marks the second one."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def batch_acks(group: str, topic: str, receipts: Iterable[Receipt]) -> list[BatchAck]:
    """Encode receipts: those of one pop of one queue become one entry, with a bit per message."""
    masks: dict[Receipt, int] = {}
    for receipt in receipts:
        pop = receipt._replace(offset=0)
        masks[pop] = masks.get(pop, 0) | 1 << (receipt.offset - receipt.start)
    return [
        BatchAck(group, topic, pop.retry, pop.start, pop.queue, pop.revive_queue, pop.pop_time, pop.invisible_ms, mask)
        for pop, mask in masks.items()
    ]
