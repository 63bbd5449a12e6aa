"""Receipt handles of popped messages, and the three strings of a POP response from which the client builds them.

startOffsetInfo   R Q start;...              R: 0 for the topic, 1 and 2 for its retry topic in the old and the new spelling
msgOffsetInfo     R Q offset,offset,...;...  the offsets popped; the index in the list identifies a message
orderCountInfo    R Q count;... or R qoQ%offset count;...    number of deliveries to an orderly group

receipt           start popTime invisibleTime reviveQueue R broker queue offset     (separated by blanks)
"""

from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
ORDERLY_REVIVE_QUEUE = 999

SourceQueue = tuple[str, int]
"""R and the queue id."""


class Receipt(NamedTuple):
    """The handle (property POP_CK) with which a popped message is acknowledged. `start` is the first offset of the pop."""

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


def parse_receipt(text: str) -> Receipt:
    """Parse a receipt. Raises RemoteProtocolError."""
    try:
        start, pop_time, invisible_ms, revive_queue, retry, broker, queue, offset = text.split(" ")
        return Receipt(int(start), int(pop_time), int(invisible_ms), int(revive_queue), retry, broker, int(queue), int(offset))
    except ValueError as error:
        raise RemoteProtocolError(f"{text[:200]!r} is not the receipt of a popped message: {error}") from error


def parse_start_offsets(text: str | None) -> dict[SourceQueue, int]:
    """Parse `startOffsetInfo`. Raises RemoteProtocolError."""
    try:
        return {(retry, int(queue)): int(start) for retry, queue, start in _entries(text)}
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a valid startOffsetInfo (start offsets of popped queues): {error}") from error


def parse_message_offsets(text: str | None) -> dict[SourceQueue, list[int]]:
    """Parse `msgOffsetInfo`. Raises RemoteProtocolError."""
    try:
        return {(retry, int(queue)): [int(offset) for offset in offsets.split(",")] for retry, queue, offsets in _entries(text)}
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a valid msgOffsetInfo (popped offsets): {error}") from error


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Parse `orderCountInfo`, by R and either the queue id or `qoQ%offset`. Raises RemoteProtocolError."""
    try:
        return {(retry, key): int(count) for retry, key, count in _entries(text)}
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a valid orderCountInfo (number of pops): {error}") from error


def _entries(text: str | None) -> list[list[str]]:
    return [entry.split(" ") for entry in text.split(";") if entry] if text else []


def format_start_offsets(starts: dict[SourceQueue, int]) -> str:
    """Format `startOffsetInfo` of a response."""
    return ";".join(f"{retry} {queue} {start}" for (retry, queue), start in starts.items())


def format_message_offsets(offsets: dict[SourceQueue, list[int]]) -> str:
    """Format `msgOffsetInfo` of a response."""
    return ";".join(f"{retry} {queue} {','.join(map(str, popped))}" for (retry, queue), popped in offsets.items())
