"""One send: its bytes, the same for every attempt, and the broker's response."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.rocketmq.client.route import queue_label
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import STORED, Status, refused
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.headers.send import SendResult as SendResultHeader

OVERSIZED = "message body size exceeded"
"""In the remark of a SYSTEM_ERROR: a 5.3 broker refuses a batch above its maxMessageSize; a message gets MESSAGE_ILLEGAL."""


DIGITS = 18
"""A number of this many decimal digits fits 64 bits."""


class SendResult(NamedTuple):
    """The location of stored messages: the queue, the first offset, and the offset message ids, joined by commas for a batch.

    A delayed message or a half message waits in another topic: its offset and id belong to that. `status` is SUCCESS, or says
    that it is stored but not yet on disk or at a slave (FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT). `address`
    is the broker's.
    """

    queue: Queue
    offset: int
    message_id: str
    status: int
    transaction_id: str | None
    address: str


class SendRequest:
    """A send in progress, with the same bytes for every attempt. If it is `movable`, it may go to any queue.

    If it is `withdrawn`, it is not sent again: it fails with the awaited response, unless that reports it as stored.
    """

    __slots__ = ("body", "code", "future", "header", "movable", "size", "withdrawn")

    def __init__(
        self, code: int, header: SendHeader, body: bytes, future: "asyncio.Future[SendResult]", *, movable: bool = False
    ) -> None:
        self.code, self.header, self.body, self.future, self.movable = code, header, body, future, movable
        self.size = len(body) + len(header.properties)
        self.withdrawn = False

    def fail(self, error: Exception) -> None:
        """Fail the send with `error`."""
        if not self.future.done():
            self.future.set_exception(error)


def read_result(queue: Queue, answer: Command, address: str) -> SendResult:
    """Return where the broker at `address` stored the send.

    Raises ServerRefused, and RemoteProtocolError for a response that names another queue.
    """
    if answer.code not in STORED:
        error = refused(f"a send to {queue_label(queue)}", answer.code, answer.remark)
        if answer.code == Status.SYSTEM_ERROR and OVERSIZED in (answer.remark or ""):
            error.failure = Failure.REFUSED
        raise error
    if (found := _parse_usual(answer.ext)) is not None and found[0] == queue.id:
        return SendResult(queue, found[1], found[2], answer.code, answer.ext.get("transactionId"), address)
    try:
        header = SendResultHeader.decode(answer.ext)
    except RemoteProtocolError as error:
        raise _invalid_response(queue, address, str(error)) from error
    if header.queue_id != queue.id or header.queue_offset < 0:
        raise _invalid_response(queue, address, f"it names queue {header.queue_id} and offset {header.queue_offset}")
    return SendResult(queue, header.queue_offset, header.msg_id, answer.code, header.transaction_id, address)


def _parse_usual(ext: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Return queue, offset and message ids, if they are written as usual; else None."""
    try:
        number, offset, ids = ext["queueId"], ext["queueOffset"], ext["msgId"]
    except KeyError:
        return None
    usual = number.isdecimal() and offset.isdecimal() and len(number) <= DIGITS >= len(offset)
    return (int(number), int(offset), ids) if usual else None


def _invalid_response(queue: Queue, address: str, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{address} sent an invalid response to a send to {queue_label(queue)}: {reason}")
