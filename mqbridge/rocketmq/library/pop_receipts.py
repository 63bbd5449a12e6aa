"""Receipts of popped messages: which one a record has, and how several are acknowledged at once."""

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
    """The topic that an acknowledgement names."""
    return {NORMAL: topic, RETRY_V1: f"{RETRY_PREFIX}{group}_{topic}", RETRY_V2: f"{RETRY_PREFIX}{group}+{topic}"}[retry]


def make_receipts(broker: str, header: PopResult, records: Sequence[Record]) -> list[Receipt]:
    """One receipt per record. Raises RemoteProtocolError when the answer does not say which offset a record has.

    The n-th record of a queue, by offset, has the n-th offset of the answer's list. A record that comes again looks as if it came
    from the topic itself; such a one brings its receipt along.
    """
    starts = parse_start_offsets(header.start_offset_info)
    listed = parse_message_offsets(header.msg_offset_info)
    brought = [property_of(record, _RECEIPT) for record in records]
    keys = [(_kind(record.topic), record.queue_id) for record in records]
    offsets: dict[tuple[str, int], list[int]] = {}
    for record, key, text in zip(records, keys, brought, strict=True):
        if text is None:
            offsets.setdefault(key, []).append(record.queue_offset)
    places = {key: {offset: place for place, offset in enumerate(sorted(found))} for key, found in offsets.items()}
    receipts = []
    for record, key, text in zip(records, keys, brought, strict=True):
        if text is not None:
            receipts.append(parse_receipt(text.decode(errors="replace")))
            continue
        try:
            start, offset = starts[key], listed[key][places[key][record.queue_offset]]
        except (KeyError, IndexError) as error:
            said = f"{header.start_offset_info!r}, {header.msg_offset_info!r}"
            raise RemoteProtocolError(f"the popped {record!r} is not in what the answer lists: {said}") from error
        kind, queue = key
        receipts.append(Receipt(start, header.pop_time, header.invisible_time, header.revive_qid, kind, broker, queue, offset))
    return receipts


def _kind(topic: str) -> str:
    """Which kind of topic a record lies in. Names of topics have no `+`: only the second spelling of a retry topic does."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def batch_acks(group: str, topic: str, receipts: Iterable[Receipt]) -> list[BatchAck]:
    """Receipts of the same pop of the same queue become one entry, with a bit for each."""
    masks: dict[Receipt, int] = {}
    for receipt in receipts:
        common = receipt._replace(offset=0)
        masks[common] = masks.get(common, 0) | 1 << (receipt.offset - receipt.start)
    return [
        BatchAck(group, topic, one.retry, one.start, one.queue, one.revive_queue, one.pop_time, one.invisible_ms, mask)
        for one, mask in masks.items()
    ]
