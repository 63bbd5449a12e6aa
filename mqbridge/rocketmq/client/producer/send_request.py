"""One send request, and the result that its response contains."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mqbridge.errors import Failure, MqbridgeError, RemoteProtocolError
from mqbridge.net.waiting_sends import Caller
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.wire.batch import decode_batch, end_of
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import STORED, Code, Status, refusal_error
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import SendHeader, SendResultHeader
from mqbridge.rocketmq.wire.properties import strip_effective

OVERSIZED = "message body size exceeded"
"""Part of the remark of a SYSTEM_ERROR by which a 5.3 broker refuses a batch above its maxMessageSize.

(A single message above it gets the response MESSAGE_ILLEGAL.)
"""
MAX_SAFE_DIGITS = 18
"""Every number with at most this many decimal digits fits into 64 bits."""


class SendResult(NamedTuple):
    """Where a send was stored: the queue, the offset of its first message, and the `address` of the broker.

    `message_id` is the broker's id of the message (not its UNIQ_KEY); for a batch, the ids of all messages, joined by commas. The
    broker first stores a delayed message, or the half message of a transaction, in another topic; `offset` and `message_id` then
    belong to the message in that topic. `transaction_id` matters only for half messages. `status` is SUCCESS, or one of
    FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT: the message is stored, but not yet on disk or at a slave.
    """

    queue: Queue
    offset: int
    message_id: str
    status: int
    transaction_id: str | None
    address: str


DIVIDED = -1
"""The `offset` in the result of a batch that was divided: the results of its parts are those of its messages."""

OnDivided = Callable[["Sequence[SendRequest]"], None]
"""Called with the parts of a batch that a broker has refused, before they are sent."""


class SendRequest:
    """A pending send; its body and header are the same for every attempt, except for the queue id.

    `code` is the request code. A `movable` request may go to any queue. Without a `caller`, the caller withdraws it by `future`,
    and learns of its result by `future`. A request that was `withdrawn` while in flight is not sent again: it fails unless its
    response reports a success. `size` is the size of body and properties, in bytes.

    With `on_divided`, a batch that the broker refuses is sent again in two parts, down to single messages: only a message that is
    refused alone is known to be refused. `first` and `count` say which messages of the whole batch a part has.
    """

    __slots__ = ("body", "caller", "code", "count", "first", "future", "header", "movable", "on_divided", "size", "withdrawn")

    def __init__(
        self,
        code: int,
        header: SendHeader,
        body: bytes,
        future: "asyncio.Future[SendResult]",
        *,
        movable: bool = False,
        caller: Caller | None = None,
        on_divided: OnDivided | None = None,
        first: int = 0,
        count: int = 1,
    ) -> None:
        self.code, self.header, self.body = code, header, body
        self.on_divided, self.first, self.count = on_divided, first, count
        self.future, self.movable = future, movable
        self.caller = caller or Caller(future, None, (future,))
        self.size = len(body) + len(header.properties)
        self.withdrawn = False

    @property
    def is_divisible(self) -> bool:
        """True for a batch whose messages may be sent in parts, down to a single message if its properties are UTF-8."""
        if self.on_divided is None or self.code != Code.SEND_BATCH_MESSAGE:
            return False
        return self.count > 1 or _is_text(decode_batch(self.body)[0][2])

    def divide(self, address: str) -> "list[SendRequest]":
        """Return the two halves of a divisible batch, or the single message of a batch of one; complete this request.

        `address` is that of the broker that has refused it.
        """
        assert self.on_divided is not None  # noqa: S101 - by is_divisible
        middle = self.count // 2
        if middle:
            end = end_of(self.body, middle)
            parts = [self._part(self.body[:end], 0, middle), self._part(self.body[end:], middle, self.count - middle)]
        else:
            parts = [self._single()]
        self.on_divided(parts)
        if not self.future.done():
            queue = Queue(self.header.topic, "", self.header.queue_id)
            self.future.set_result(SendResult(queue, DIVIDED, "", Status.SUCCESS, None, address))
        return parts

    def _part(self, body: bytes, first: int, count: int) -> "SendRequest":
        return self._derived(self.code, self.header, body, self.first + first, count)

    def _single(self) -> "SendRequest":
        ((flag, body, properties),) = decode_batch(self.body)
        text = strip_effective(properties).decode()  # a broker would act on them now
        header = replace(self.header, batch=False, properties=text, flag=flag)
        return self._derived(Code.SEND_MESSAGE_V2, header, body, self.first, 1)

    def _derived(self, code: int, header: SendHeader, body: bytes, first: int, count: int) -> "SendRequest":
        future: asyncio.Future[SendResult] = self.future.get_loop().create_future()
        request = SendRequest(
            code,
            header,
            body,
            future,
            movable=self.movable,
            caller=self.caller,
            on_divided=self.on_divided,
            first=first,
            count=count,
        )
        request.withdrawn = self.withdrawn
        return request

    def fail(self, error: MqbridgeError) -> None:
        """Let the future fail with `error`, unless it is done already."""
        if not self.future.done():
            self.future.set_exception(error)


def _is_text(properties: bytes) -> bool:
    """Return True if the header of a single message, which is text, can carry these properties."""
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_result(queue: Queue, response: Command, address: str) -> SendResult:
    """Return the result of a send to `queue` from the response of the broker at `address`.

    Raises ServerRefused if the broker did not store the send, RemoteProtocolError for an invalid response or another queue in it.
    """
    if response.code not in STORED:
        error = refusal_error(f"a send to queue {queue_label(queue)}", response.code, response.remark)
        if response.code == Status.SYSTEM_ERROR and OVERSIZED in (response.remark or ""):
            error.failure = Failure.REFUSED
        raise error
    location = _parse_fast(response.ext)
    if location is not None and location[0] == queue.id:
        return SendResult(queue, location[1], location[2], response.code, response.ext.get("transactionId"), address)
    try:
        header = SendResultHeader.decode(response.ext)
    except RemoteProtocolError as error:
        raise _invalid_response(queue, address, str(error)) from error
    if header.queue_id != queue.id or header.queue_offset < 0:
        raise _invalid_response(queue, address, f"it contains queue {header.queue_id} and offset {header.queue_offset}")
    return SendResult(queue, header.queue_offset, header.msg_id, response.code, header.transaction_id, address)


def _parse_fast(ext: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Return queue id, offset and message ids of a response; None if a number has other characters than digits, or too many."""
    try:
        queue_id, offset, message_ids = ext["queueId"], ext["queueOffset"], ext["msgId"]
    except KeyError:
        return None
    are_numbers = queue_id.isdecimal() and offset.isdecimal()
    are_safe = len(queue_id) <= MAX_SAFE_DIGITS and len(offset) <= MAX_SAFE_DIGITS
    return (int(queue_id), int(offset), message_ids) if are_numbers and are_safe else None


def _invalid_response(queue: Queue, address: str, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"broker {address} sent an invalid response to a send to queue {queue_label(queue)}: {reason}")
