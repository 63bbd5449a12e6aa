"""Transactional messages: a half message that no consumer sees, a local transaction, then a commit or a rollback to the broker.

A commit or rollback that is lost does no harm: the broker asks back for half messages that are older than its transactionTimeOut,
at any connected producer of the group, and `check` answers. So `check` must read the outcome from storage, not from this process.
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
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.queue_producer import QueueProducer
from mqbridge.rocketmq.client.send_request import SendResult
from mqbridge.rocketmq.library.encoding import Compression, MessageEncoder
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import find_queue
from mqbridge.rocketmq.mapping.stored import read
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

HALVES_IN_FLIGHT = 32
"""Per queue: local transactions run side by side, so the order of their messages means nothing."""
MAX_CHECKS = 64
"""Running at once; a broker that gets no answer asks again later."""


class State(Enum):
    """Outcome of the local transaction."""

    COMMIT = WIRE_COMMIT
    ROLLBACK = WIRE_ROLLBACK
    UNKNOWN = STATE_UNKNOWN
    """Not decided: the broker asks later."""


class Half(NamedTuple):
    """A half message that a broker asks about."""

    transaction_id: str
    """The message's UNIQ_KEY, the same that `execute` was given."""
    message: Message
    record: Record
    properties: dict[str, str]
    """As stored, those of the system among them."""


class TransactionResult(NamedTuple):
    """Where the half message is stored, its transaction id, and the state that the broker was told."""

    half: SendResult
    transaction_id: str
    state: State


Execute = Callable[[OutgoingMessage, str], State | Awaitable[State]]
"""Runs the local transaction of a message; takes the message and its transaction id."""
Check = Callable[[Half], State | Awaitable[State]]
Listener = Callable[[str, CheckTransactionHeader, Half], None]

_listeners: WeakKeyDictionary[BaseClient, dict[tuple[str, str], Listener]] = WeakKeyDictionary()
"""The listener for the transactions of each group and topic, by client."""


class TransactionProducer:
    """Made inside a running loop, by `RocketMQClient.transaction_producer`; one per group and topic of a client."""

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
        listeners = _listeners.setdefault(client, {})
        if (group, topic) in listeners:
            raise LocalProtocolError(f"this client has a transaction producer of group {group} for {topic} already")
        self._client, self._check = client, check
        self._group, self._topic = group, topic
        self._producer = QueueProducer(
            client,
            group,
            topic,
            in_flight_per_queue=HALVES_IN_FLIGHT,
            max_elapsed_s=max_elapsed_s,
            max_message_bytes=max_message_bytes,
        )
        self._encoder = MessageEncoder(client.reserve_ids, client.unique_id, compression, max_message_bytes)
        self._known_to_brokers = False
        self._checks = 0
        self._closed = False
        listeners[group, topic] = self._on_check
        client.on(Code.CHECK_TRANSACTION_STATE, partial(on_check, client))

    @property
    def topic(self) -> str:
        """The topic."""
        return self._topic

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    async def send(self, message: OutgoingMessage, execute: Execute, *, partition: str | None = None) -> TransactionResult:
        """Store the half message, run `execute`, tell the broker the outcome.

        If a slave or the disk is not known to have the half message, it is rolled back, and `execute` is not run. If `execute`
        raises, the broker is told UNKNOWN, and the exception goes on. A transactional message has no delay: it is left out.
        Raises ClusterError when the half message cannot be stored, and MappingError.
        """
        await self._introduce()
        transaction_id = self._client.unique_id()
        half = await self._send_half(replace(message, delay_level=0, deliver_at=None), transaction_id, partition)
        if half.status != Status.SUCCESS:
            await self._end(half, transaction_id, State.ROLLBACK)
            return TransactionResult(half, transaction_id, State.ROLLBACK)
        try:
            state = await _outcome(execute(message, transaction_id))
        except BaseException as error:
            await self._end(half, transaction_id, State.UNKNOWN, f"the local transaction failed: {error}")
            raise
        await self._end(half, transaction_id, state)
        return TransactionResult(half, transaction_id, state)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close; from now on the broker asks other producers of the group."""
        self._closed = True
        _listeners[self._client].pop((self._group, self._topic), None)
        await self._producer.close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _introduce(self) -> None:
        """Brokers ask back over connections that had a heartbeat of the group."""
        await self._producer.queues()
        if not self._known_to_brokers:
            await self._client.heartbeat()
            self._known_to_brokers = True

    async def _send_half(self, message: OutgoingMessage, transaction_id: str, partition: str | None) -> SendResult:
        marks = [(Name.TRAN_MSG, "true"), (Name.PGROUP, self._group)]
        request = self._encoder.encode_alone(message, marks, transaction_id, SysFlag.PREPARED)
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
            movable=partition is None,
        )

    async def _end(self, half: SendResult, transaction_id: str, state: State, remark: str | None = None) -> None:
        header = EndTransactionHeader(
            producer_group=self._group,
            topic=self._topic,
            tran_state_table_offset=half.offset,
            commit_log_offset=_physical_offset(half),
            commit_or_rollback=state.value,
            msg_id=transaction_id,
            transaction_id=half.transaction_id or transaction_id,
        )
        await self._tell(half.address, header, remark)

    async def _tell(self, address: str, header: EndTransactionHeader, remark: str | None = None) -> None:
        try:
            await self._client.oneway(address, Code.END_TRANSACTION, header.encode(), remark=remark)
        except ClusterError as error:
            log.info("%s was not told about transaction %s and will ask: %s", address, header.msg_id, error)

    # --- the broker asks --------------------------------------------------------------------------------------------

    def _on_check(self, address: str, asked: CheckTransactionHeader, half: Half) -> None:
        if self._checks >= MAX_CHECKS:
            log.warning("%d checks of transactions of %s are running; one more has to come again", self._checks, self._group)
            return
        self._checks += 1
        spawn(self._checked(address, asked, half), f"check transaction {half.transaction_id}")

    async def _checked(self, address: str, asked: CheckTransactionHeader, half: Half) -> None:
        """Run the check and answer the broker. If it raises, the task's log says so, and the broker asks again."""
        try:
            state = await _outcome(self._check(half))
        finally:
            self._checks -= 1
        header = EndTransactionHeader(
            producer_group=self._group,
            topic=self._topic,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=half.transaction_id,
            transaction_id=asked.transaction_id,
        )
        await self._tell(address, header)


async def _outcome(state: State | Awaitable[State]) -> State:
    return await state if inspect.isawaitable(state) else state


def _physical_offset(half: SendResult) -> int:
    try:
        return parse_offset_id(half.message_id)[1]
    except RemoteProtocolError as error:
        raise ClusterError(f"the broker {half.address} stored a half message under an id that is none: {error}") from error


def on_check(client: BaseClient, address: str, request: Command) -> None:
    """CHECK_TRANSACTION_STATE: find the producer by the half message's own group. Raises RemoteProtocolError."""
    asked = CheckTransactionHeader.decode(request.ext)
    records = decode_records(request.body)
    if len(records) != 1:
        raise RemoteProtocolError(f"{len(records)} records where one half message is due")
    (record,) = records
    properties = dict(props.decode(record.properties))
    group = properties.get(Name.PGROUP, "")
    listener = _listeners.get(client, {}).get((group, record.topic))
    if listener is None:
        log.warning("%s asks about a transaction of group %s and topic %s, which nobody here has", address, group, record.topic)
        return
    transaction_id = properties.get(Name.UNIQ_KEY) or asked.msg_id or ""
    listener(address, asked, Half(transaction_id, read(record), record, properties))
