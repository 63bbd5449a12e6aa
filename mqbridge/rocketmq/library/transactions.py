"""Transactional messages: the broker stores a message that consumers receive only if a local transaction commits.

1. The producer sends a half message, which the broker hides from consumers.
2. The application runs its local transaction, such as a database transaction.
3. The producer sends the outcome in an END_TRANSACTION request: a commit delivers the message, a rollback drops it.

If the outcome does not arrive within the broker's `transactionTimeOut`, the broker asks any connected producer of the group for
it (CHECK_TRANSACTION_STATE), and that producer calls `check`. So `check` must read the outcome from storage that all producers of
the group share, not from the memory of one process.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

from mqbridge.errors import ClusterError, LocalProtocolError, RemoteProtocolError
from mqbridge.library.contract import CLOSE_TIMEOUT_S
from mqbridge.message import Message
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.client.producer.send_request import SendResult
from mqbridge.rocketmq.library.encoding import MessageEncoder
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import find_queue
from mqbridge.rocketmq.library.queue_wait import QueueWait
from mqbridge.rocketmq.mapping.compressed_body import Compression
from mqbridge.rocketmq.mapping.stored import decode_record
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.transactions import COMMIT as WIRE_COMMIT
from mqbridge.rocketmq.wire.headers.transactions import ROLLBACK as WIRE_ROLLBACK
from mqbridge.rocketmq.wire.headers.transactions import STATE_UNKNOWN, CheckTransactionHeader, EndTransactionHeader
from mqbridge.rocketmq.wire.ids import parse_offset_id
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES, Record, SysFlag, decode_records

log = logging.getLogger(__name__)

MAX_HALVES_PER_QUEUE = 32
"""Limit of half messages in flight per queue. They need no order, because local transactions run concurrently."""
MAX_CHECKS = 64
"""Limit of checks that one producer runs at once. A further check is not answered, and the broker asks again later."""


class State(Enum):
    """Outcome of a local transaction; the values are those of the protocol."""

    COMMIT = WIRE_COMMIT
    ROLLBACK = WIRE_ROLLBACK
    UNKNOWN = STATE_UNKNOWN
    """Not decided yet: the broker asks again later."""


class Half(NamedTuple):
    """A half message whose outcome a broker asks for."""

    transaction_id: str
    """The message's UNIQ_KEY, which `send` passed to `execute`."""
    message: Message
    """The half message, decoded."""
    record: Record
    """The half message as the broker stores it."""
    properties: dict[str, str]
    """All properties of `record`, including those of the system."""


class TransactionResult(NamedTuple):
    """Result of a transactional send."""

    half: SendResult
    """Result of sending the half message: where it is stored."""
    transaction_id: str
    state: State
    """The outcome. If it could not be sent, this is only logged, and the broker asks for it."""


Execute = Callable[[OutgoingMessage, str], State | Awaitable[State]]
"""Runs the local transaction of a message, given the message and its transaction id. Returns the outcome."""
Check = Callable[[Half], State | Awaitable[State]]
"""Looks up the outcome of the local transaction that belongs to a half message."""
CheckHandler = Callable[[str, CheckTransactionHeader, Half], None]
"""Handles a broker's check, given the broker's address, the header of its request, and the half message."""

_check_handlers: WeakKeyDictionary[BaseClient, dict[tuple[str, str], CheckHandler]] = WeakKeyDictionary()
"""The handlers of checks by client, and for each client by producer group and topic.

They are not fields of the producers, because a client has one handler for all CHECK_TRANSACTION_STATE requests.
"""


class TransactionProducer:
    """Sends transactional messages to one topic; opened by `RocketMQClient.transaction_producer`.

    Create it inside a running loop. A client can have one per group and topic. `RocketMQClient.transaction_producer` explains the
    parameters.
    """

    def __init__(
        self,
        client: BaseClient,
        group: str,
        topic: str,
        check: Check,
        *,
        compression: Compression = "none",
        max_elapsed_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._home = HomeLoop(f"the transaction producer of topic {topic!r}")
        handlers = _check_handlers.setdefault(client, {})
        if (group, topic) in handlers:
            raise LocalProtocolError(
                f"this client already has a transaction producer of group {group} for topic {topic}: use it, or close it first"
            )
        self._client, self._check = client, check
        self._group, self._topic = group, topic
        self._producer = QueueProducer(
            client,
            group,
            topic,
            in_flight_per_queue=MAX_HALVES_PER_QUEUE,
            max_elapsed_s=max_elapsed_s,
            max_message_bytes=max_message_bytes,
        )
        self._queue_wait = QueueWait(self._producer)
        self._encoder = MessageEncoder(client.reserve_ids, client.unique_id, compression, max_message_bytes)
        self._is_registered = False
        self._running_checks = 0
        self._closed = False
        handlers[group, topic] = self._on_check
        client.on(Code.CHECK_TRANSACTION_STATE, partial(dispatch_check, client))

    @property
    def topic(self) -> str:
        """The topic, as it was given to the client."""
        return self._topic

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    async def send(self, message: OutgoingMessage, execute: Execute, *, partition: str | None = None) -> TransactionResult:
        """Send the half message, run `execute` once it is stored, and send the outcome to the broker.

        `partition` is the queue as `BROKER:QUEUE_ID`. None: the key selects it, and messages without a key are sent round robin.

        If the broker stored the half message but reports that it may not be on disk or at a slave yet, the message is rolled
        back without running `execute`. If `execute` raises, UNKNOWN is sent to the broker, and the exception is raised.
        `delay_level` and `deliver_at` are ignored, because transactional messages cannot be delayed. Raises ClusterError if the
        half message cannot be stored, or is stored under an invalid id; MappingError if RocketMQ cannot store such a message.
        """
        self._home.check()
        await self._register_group()
        transaction_id = self._client.unique_id()
        half = await self._send_half(replace(message, delay_level=0, deliver_at=None), transaction_id, partition)
        if half.status != Status.SUCCESS:
            await self._send_outcome(half, transaction_id, State.ROLLBACK)
            return TransactionResult(half, transaction_id, State.ROLLBACK)
        try:
            state = await _await_state(execute(message, transaction_id))
        except BaseException as error:
            await self._send_outcome(half, transaction_id, State.UNKNOWN, f"the local transaction failed: {error}")
            raise
        await self._send_outcome(half, transaction_id, state)
        return TransactionResult(half, transaction_id, state)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close the producer, waiting for responses to half messages at most `timeout` seconds.

        Brokers then ask other producers of the group for outcomes that are still open.
        """
        if self._home.is_over():
            return
        if not self._closed:  # after the first `close`, the handler may be that of a newer producer
            self._closed = True
            del _check_handlers[self._client][self._group, self._topic]
        await self._producer.close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _register_group(self) -> None:
        """Send a heartbeat before the first message, because brokers send checks only to producers known from heartbeats."""
        await self._queue_wait.queues()
        if not self._is_registered:
            await self._client.heartbeat()
            self._is_registered = True

    async def _send_half(self, message: OutgoingMessage, transaction_id: str, partition: str | None) -> SendResult:
        half_properties = [(Name.TRAN_MSG, "true"), (Name.PGROUP, self._group)]
        request = self._encoder.encode_single(message, half_properties, transaction_id, SysFlag.PREPARED)
        if partition is None:
            queue = self._producer.choose(message.queue_key)
        else:
            queue = find_queue(self._topic, await self._producer.queues(), partition)
        return await self._producer.send_single(
            queue,
            request.body,
            request.properties,
            request.flag,
            request.sys_flag,
            request.born,
            movable=partition is None and message.queue_key is None,
        )

    async def _send_outcome(self, half: SendResult, transaction_id: str, state: State, remark: str | None = None) -> None:
        header = EndTransactionHeader(
            producer_group=self._group,
            topic=self._topic,
            tran_state_table_offset=half.offset,
            commit_log_offset=_physical_offset(half),
            commit_or_rollback=state.value,
            msg_id=transaction_id,
            transaction_id=half.transaction_id or transaction_id,  # brokers normally return the same id
        )
        await self._send_end_transaction(half.address, header, remark)

    async def _send_end_transaction(self, address: str, header: EndTransactionHeader, remark: str | None = None) -> None:
        try:
            await self._client.oneway(address, Code.END_TRANSACTION, header.encode(), remark=remark)
        except ClusterError as error:
            log.info(
                "group %s: sending the outcome of transaction %s on topic %s to broker %s failed: %s; the broker will ask",
                self._group,
                header.msg_id,
                self._topic,
                address,
                error,
            )

    # --- checks by brokers ------------------------------------------------------------------------------------------

    def _on_check(self, address: str, check_header: CheckTransactionHeader, half: Half) -> None:
        if self._running_checks >= MAX_CHECKS:
            log.warning(
                "group %s: ignoring a check of transaction %s, because %d checks are running; the broker will ask again",
                self._group,
                half.transaction_id,
                self._running_checks,
            )
            return
        self._running_checks += 1
        spawn(self._run_check(address, check_header, half), f"check transaction {half.transaction_id}")

    async def _run_check(self, address: str, check_header: CheckTransactionHeader, half: Half) -> None:
        """Call `check` and send the outcome to the broker. If `check` raises, `spawn` logs that, and the broker asks again."""
        try:
            state = await _await_state(self._check(half))
        finally:
            self._running_checks -= 1
        header = EndTransactionHeader(
            producer_group=self._group,
            topic=self._topic,
            tran_state_table_offset=check_header.tran_state_table_offset,
            commit_log_offset=check_header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=half.transaction_id,
            transaction_id=check_header.transaction_id,
        )
        await self._send_end_transaction(address, header)


async def _await_state(state: State | Awaitable[State]) -> State:
    """Return the state; `execute` and `check` may be plain or async functions."""
    return await state if inspect.isawaitable(state) else state


def _physical_offset(half: SendResult) -> int:
    """Return the offset of the half message in the broker's commit log, which is part of its message id."""
    try:
        return parse_offset_id(half.message_id)[1]
    except RemoteProtocolError as error:
        raise ClusterError(f"broker {half.address} returned an invalid message id for a half message: {error}") from error


def dispatch_check(client: BaseClient, address: str, request: Command) -> None:
    """Handle CHECK_TRANSACTION_STATE: pass the half message to the handler of its group and topic.

    Raises RemoteProtocolError for an invalid request.
    """
    check_header = CheckTransactionHeader.decode(request.ext)
    records = decode_records(request.body)
    if len(records) != 1:
        raise RemoteProtocolError(
            f"a check of a transaction by broker {address} has {len(records)} records instead of one half message"
        )
    (record,) = records
    properties = dict(props.decode(record.properties))
    group = properties.get(Name.PGROUP, "")
    transaction_id = properties.get(Name.UNIQ_KEY) or check_header.msg_id or ""  # `msg_id` is a copy of UNIQ_KEY
    handler = _check_handlers.get(client, {}).get((group, record.topic))
    if handler is None:
        log.warning(
            "ignoring a check of transaction %s by broker %s: this client has no transaction producer of group %s for topic %s; "
            "the broker will ask again",
            transaction_id,
            address,
            group,
            record.topic,
        )
        return
    handler(address, check_header, Half(transaction_id, decode_record(record), record, properties))
