"""Makes the receipts of popped messages from a POP response, and combines receipts for one acknowledgement request.

POP reads messages without assigned queues; the consumer acknowledges each message by its receipt. `wire/receipts.py` describes
receipts and the offset lists in the response.
"""

from collections.abc import Iterable, Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.client.consumer.pulled_records import property_of
from mqbridge.rocketmq.client.consumer.subscription import RETRY_PREFIX
from mqbridge.rocketmq.wire.bodies.pop import BatchAck
from mqbridge.rocketmq.wire.headers.pop import PopResult
from mqbridge.rocketmq.wire.properties import NAME_END, Name
from mqbridge.rocketmq.wire.receipts import (
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    ReceiptHandle,
    parse_message_offsets,
    parse_receipt,
    parse_start_offsets,
)
from mqbridge.rocketmq.wire.record import Record

_RECEIPT_PREFIX = f"{Name.POP_CK}{NAME_END}".encode()
"""Beginning of the property with the receipt, which brokers add to redelivered messages."""


def popped_topic(group: str, topic: str, retry: str) -> str:
    """Return the topic to name when a message is acknowledged: the topic itself, or the group's retry topic for it.

    `retry` is the receipt's retry marker: NORMAL, or the form of the retry topic's name (RETRY_V1 or RETRY_V2).
    """
    return {NORMAL: topic, RETRY_V1: f"{RETRY_PREFIX}{group}_{topic}", RETRY_V2: f"{RETRY_PREFIX}{group}+{topic}"}[retry]


def make_receipts(broker: str, header: PopResult, records: Sequence[Record]) -> list[ReceiptHandle]:
    """Return the receipt of each record, in the order of `records`.

    A redelivered record has its receipt as a property, because its topic and offset are those of its first delivery. For other
    records the response lists offsets by queue: the n-th record of a queue, in the order of offsets, has the n-th offset in the
    list, as in the Java client. Raises RemoteProtocolError if the response lists no offset for a record.
    """
    start_offsets = parse_start_offsets(header.start_offset_info)
    listed_offsets = parse_message_offsets(header.msg_offset_info)
    stored_receipts = [property_of(record, _RECEIPT_PREFIX) for record in records]
    # The response has a list of offsets for each pair of a retry marker and a queue id.
    sources = [(_retry_marker(record.topic), record.queue_id) for record in records]
    offsets: dict[tuple[str, int], list[int]] = {}
    for record, source, stored_receipt in zip(records, sources, stored_receipts, strict=True):
        if stored_receipt is None:
            offsets.setdefault(source, []).append(record.queue_offset)
    indexes = {
        source: {offset: index for index, offset in enumerate(sorted(queue_offsets))} for source, queue_offsets in offsets.items()
    }
    receipts = []
    for record, source, stored_receipt in zip(records, sources, stored_receipts, strict=True):
        if stored_receipt is not None:
            receipts.append(parse_receipt(stored_receipt.decode(errors="replace")))
            continue
        try:
            start, offset = start_offsets[source], listed_offsets[source][indexes[source][record.queue_offset]]
        except (KeyError, IndexError) as error:
            lists = f"{header.start_offset_info!r}, {header.msg_offset_info!r}"
            record_name = f"offset {record.queue_offset} of queue {record.queue_id} of topic {record.topic}, broker {broker}"
            raise RemoteProtocolError(f"the offset lists of the POP response lack {record_name}: {lists}") from error
        retry, queue = source
        receipts.append(
            ReceiptHandle(start, header.pop_time, header.invisible_time, header.revive_qid, retry, broker, queue, offset)
        )
    return receipts


def _retry_marker(topic: str) -> str:
    """Return RETRY_V2 for a retry topic of the new spelling, with a `+`, RETRY_V1 for the old spelling, and NORMAL otherwise.

    Names of topics and groups contain no `+`.
    """
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def make_batch_acks(group: str, topic: str, receipts: Iterable[ReceiptHandle]) -> list[BatchAck]:
    """Return one entry per pop and queue. Bit n of its mask acknowledges the message at the pop's start offset plus n."""
    masks: dict[ReceiptHandle, int] = {}
    for receipt in receipts:
        pop = receipt._replace(offset=0)  # equal for all receipts of the same pop and queue
        masks[pop] = masks.get(pop, 0) | 1 << (receipt.offset - receipt.start)
    return [
        BatchAck(group, topic, pop.retry, pop.start, pop.queue, pop.revive_queue, pop.pop_time, pop.invisible_ms, mask)
        for pop, mask in masks.items()
    ]
