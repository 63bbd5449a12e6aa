"""Makes pulls of records, and decodes them as a lane does."""

from collections.abc import Sequence

from mqbridge.message import Message
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping.stored import decode_pulls
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record

QUEUE = Queue("T", "b", 0)
MAX_OFFSET = (1 << 63) - 1


def pull_of(records: Sequence[Record]) -> PulledRecords:
    """Return a pull with these records; any offset is within its range."""
    return PulledRecords(QUEUE, b"".join(map(encode_record, records)), -MAX_OFFSET, MAX_OFFSET)


def decode(records: Sequence[Record]) -> Sequence[Message]:
    """Encode records as a broker stores them, and return the decoded messages."""
    return decode_pulls([pull_of(records)])
