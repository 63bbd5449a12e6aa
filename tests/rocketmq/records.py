"""Records as a pull brings them, decoded as a lane does it."""

from collections.abc import Sequence

from mqbridge.message import Message
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping.stored import decode_pulls
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record

QUEUE = Queue("T", "b", 0)
LAST = (1 << 63) - 1


def pull_of(records: Sequence[Record]) -> PulledRecords:
    """A pull that brings these."""
    return PulledRecords(QUEUE, b"".join(map(encode_record, records)), -LAST, LAST)


def decode(records: Sequence[Record]) -> Sequence[Message]:
    """The messages of records that a broker stored."""
    return decode_pulls([pull_of(records)])
