"""One send: the bytes that go out, the same each time they go, and what the broker's answer means."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.rocketmq.client.route import shown
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import STORED, Status, refused
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.sending import SendHeader
from mqbridge.rocketmq.wire.headers.sending import SendResult as SendResultHeader

OVERSIZED = "message body size exceeded"
"""In the remark of a SYSTEM_ERROR: how a 5.3 broker refuses a batch above its maxMessageSize; a message gets MESSAGE_ILLEGAL."""


DIGITS = 18
"""A number of so many decimal digits fits 64 bits."""


class SendResult(NamedTuple):
    """Where it was stored: the queue, the first offset there, and the offset message ids, joined by commas for a batch.

    A delayed message and a half message wait elsewhere: their offset and id are those of that place. `status` is SUCCESS, or says
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
    """A request on its way, with the same bytes each time. One that is `movable` may go to any queue.

    What is `withdrawn` is not sent again: it fails with the answer that it is waiting for, unless that says it is stored.
    """

    __slots__ = ("body", "code", "future", "header", "movable", "size", "withdrawn")

    def __init__(
        self, code: int, header: SendHeader, body: bytes, future: "asyncio.Future[SendResult]", *, movable: bool = False
    ) -> None:
        self.code, self.header, self.body, self.future, self.movable = code, header, body, future, movable
        self.size = len(body) + len(header.properties)
        self.withdrawn = False

    def fail(self, error: Exception) -> None:
        """It will not be stored."""
        if not self.future.done():
            self.future.set_exception(error)


def read_result(queue: Queue, answer: Command, address: str) -> SendResult:
    """Where the broker at `address` stored it.

    Raises ServerRefused, and RemoteProtocolError for an answer that says it was stored where it was not sent.
    """
    if answer.code not in STORED:
        error = refused(f"a send to {shown(queue)}", answer.code, answer.remark)
        if answer.code == Status.SYSTEM_ERROR and OVERSIZED in (answer.remark or ""):
            error.failure = Failure.REFUSED
        raise error
    if (found := _quick(answer.ext)) is not None and found[0] == queue.id:
        return SendResult(queue, found[1], found[2], answer.code, answer.ext.get("transactionId"), address)
    try:
        header = SendResultHeader.decode(answer.ext)
    except RemoteProtocolError as error:
        raise _senseless(queue, address, str(error)) from error
    if header.queue_id != queue.id or header.queue_offset < 0:
        raise _senseless(queue, address, f"it names queue {header.queue_id} and offset {header.queue_offset}")
    return SendResult(queue, header.queue_offset, header.msg_id, answer.code, header.transaction_id, address)


def _quick(ext: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Queue, offset and message ids, when they are said as servers say them."""
    try:
        number, offset, ids = ext["queueId"], ext["queueOffset"], ext["msgId"]
    except KeyError:
        return None
    usual = number.isdecimal() and offset.isdecimal() and len(number) <= DIGITS >= len(offset)
    return (int(number), int(offset), ids) if usual else None


def _senseless(queue: Queue, address: str, why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{address} answered a send to {shown(queue)} by what makes no sense: {why}")
