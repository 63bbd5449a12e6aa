"""Where a message id, a time or a number of messages leads in a partition."""

from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from mqbridge.adapter.topics import Bounds
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.server.web.requests import MAX_INT64, whole_number
from mqbridge.pulsar.server.web.units import read_units
from mqbridge.pulsar.wire.ids import EARLIEST, LATEST

MAX_BATCH_INDEX = 100_000
"""Maximum index of a message in a batch."""


class RequestedId:
    """A message id in the body of a request: an end of the partition, or a message.

    ledger, entry  the entry
    batch_index    index of the message in the entry; -1 for the whole entry
    is_excluded    True if the message after it is meant
    """

    def __init__(self, body: Any) -> None:
        """`body` is the parsed JSON; None means the end. Raises HTTPException for anything but a message id."""
        body = {"earliest": EARLIEST, "latest": LATEST, None: LATEST}.get(body) if body is None or isinstance(body, str) else body
        if isinstance(body, tuple):
            body = {"ledgerId": body[0], "entryId": body[1]}
        if not isinstance(body, dict):
            reason = "the body must be a message id with ledgerId and entryId, or `latest` or `earliest`"
            raise HTTPException(HTTPStatus.BAD_REQUEST, reason)
        self.ledger: int = whole_number(body.get("ledgerId"), "ledgerId", lowest=-1)
        self.entry = whole_number(body.get("entryId"), "entryId", lowest=-1)
        self.batch_index = whole_number(body.get("batchIndex", -1), "batchIndex", lowest=-1, highest=MAX_BATCH_INDEX)
        self.is_excluded = body.get("excluded") is True or body.get("isExcluded") is True

    @property
    def is_earliest(self) -> bool:
        """True for the begin of the partition."""
        return self.ledger < 0

    @property
    def is_latest(self) -> bool:
        """True for the end of the partition."""
        return self.ledger == MAX_INT64


async def position_of_id(context: WebContext, topic: ListenedTopic, partition: int, wanted: RequestedId) -> Position:
    """Return the position of a message id, within the bounds of the partition. Raises HTTPException if it has none."""
    bounds = await context.services.partitions.bounds(topic, partition)
    if wanted.is_earliest or wanted.is_latest:
        return bounds.first if wanted.is_earliest else bounds.next
    if context.ids.is_parked((wanted.ledger, wanted.entry)):  # the end would skip what is not delivered
        reason = "the message was delivered late, and has no place among the others"
        raise HTTPException(HTTPStatus.PRECONDITION_FAILED, reason)
    numbering = context.services.numbering
    try:
        position = numbering.position(context.ids.number_of((wanted.ledger, wanted.entry)))
    except ValueError as error:
        raise HTTPException(HTTPStatus.PRECONDITION_FAILED, str(error)) from error
    if not bounds.first <= position < bounds.next:
        return bounds.first if position < bounds.first else bounds.next
    if wanted.batch_index >= 0:
        # The last component of a position counts the messages of an entry, or of the partition.
        position = (*position[:-1], position[-1] + wanted.batch_index + wanted.is_excluded)
    elif wanted.is_excluded:
        units = await read_units(context, topic, partition, position, 1)
        position = units[0].end if units else bounds.next
    return min(position, bounds.next)


def position_after(bounds: Bounds, begin: Position, count: int) -> Position:
    """Return the position `count` messages after another one, in a partition whose positions are offsets; at most its end."""
    offset = max(begin, bounds.first)[0]
    for first, after in bounds.left_out:  # offsets without messages, in ascending order
        if after <= offset:
            continue
        before = max(0, first - offset)
        if before and count <= before:
            break
        count -= before
        offset = after
    return min((offset + count,), bounds.next)
