"""Receipt handles of popped messages, and the three strings of a POP response from which the client builds them.

startOffsetInfo   R Q start;...              the first offset that was popped from each queue
msgOffsetInfo     R Q offset,offset,...;...  all offsets that were popped from each queue
orderCountInfo    R Q count;... or R qoQ%offset count;...    number of deliveries to an orderly group, by queue or by message
                                                             (`qo` and `%` are literal text)

receipt           start popTime invisibleTime reviveQueue R broker Q offset     (separated by blanks)

Q is the id of a queue. R says which topic the queue belongs to: 0 the topic itself, 1 and 2 the group's retry topic of that
topic, whose name has an old form (1) and a new form (2). The broker keeps its records of unacknowledged messages in the revive
queue.
"""

from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""The values of R."""
ORDERLY_REVIVE_QUEUE = 999
"""The number in receipts of orderly groups, for which brokers use no revive queue."""

SourceQueue = tuple[str, int]
"""R and Q: a queue of the topic or of its retry topic."""


class ReceiptHandle(NamedTuple):
    """The handle (property POP_CK) with which a consumer acknowledges a popped message.

    `start` is the first offset that the pop returned from the queue, `retry` is R. `pop_time` is in ms of the broker's clock.
    """

    start: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue: int
    offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))


def parse_receipt(text: str) -> ReceiptHandle:
    """Parse a receipt. Raises RemoteProtocolError for a text that is not a receipt."""
    try:
        start, pop_time, invisible_ms, revive_queue, retry, broker, queue, offset = text.split(" ")
        return ReceiptHandle(
            int(start), int(pop_time), int(invisible_ms), int(revive_queue), retry, broker, int(queue), int(offset)
        )
    except ValueError as error:
        raise RemoteProtocolError(f"{text[:200]!r} is not the receipt of a popped message: {error}") from error


def parse_start_offsets(text: str | None) -> dict[SourceQueue, int]:
    """Parse `startOffsetInfo` to the first popped offset of each queue; empty for None.

    Raises RemoteProtocolError for invalid text.
    """
    try:
        return {(retry, int(queue)): int(start) for retry, queue, start in _entries(text)}
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a valid startOffsetInfo (start offsets of popped queues): {error}") from error


def parse_message_offsets(text: str | None) -> dict[SourceQueue, list[int]]:
    """Parse `msgOffsetInfo` to the popped offsets of each queue; empty for None. Raises RemoteProtocolError for invalid text."""
    try:
        return {(retry, int(queue)): [int(offset) for offset in offsets.split(",")] for retry, queue, offsets in _entries(text)}
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a valid msgOffsetInfo (popped offsets): {error}") from error


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Parse `orderCountInfo` to counts by R and either Q or `qoQ%offset`, as text; empty for None.

    Raises RemoteProtocolError for invalid text.
    """
    try:
        return {(retry, key): int(count) for retry, key, count in _entries(text)}
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a valid orderCountInfo (number of deliveries): {error}") from error


def _entries(text: str | None) -> list[list[str]]:
    return [entry.split(" ") for entry in text.split(";") if entry] if text else []


def format_start_offsets(starts: dict[SourceQueue, int]) -> str:
    """Return the text of `startOffsetInfo` for a response."""
    return ";".join(f"{retry} {queue} {start}" for (retry, queue), start in starts.items())


def format_message_offsets(offsets: dict[SourceQueue, list[int]]) -> str:
    """Return the text of `msgOffsetInfo` for a response."""
    return ";".join(f"{retry} {queue} {','.join(map(str, popped))}" for (retry, queue), popped in offsets.items())
