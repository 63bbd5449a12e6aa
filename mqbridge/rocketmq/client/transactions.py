"""Transactions: a half message that nobody can read, a local transaction, and the word to the broker to show or to drop it.

A word that is lost does no harm: the broker asks back for halves that are older than its transactionTimeOut, at any connected
producer of the group, and `check` answers. So `check` must know the outcome from what is stored, not from this process.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from mqbridge.errors import ClusterError, LocalProtocolError, RemoteProtocolError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.outgoing import OutgoingMessage
from mqbridge.rocketmq.client.producer import Producer
from mqbridge.rocketmq.client.send_request import SendResult
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.transactions import COMMIT as WIRE_COMMIT
from mqbridge.rocketmq.wire.headers.transactions import ROLLBACK as WIRE_ROLLBACK
from mqbridge.rocketmq.wire.headers.transactions import STATE_UNKNOWN, CheckTransactionHeader, EndTransactionHeader
from mqbridge.rocketmq.wire.ids import parse_offset_id
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, Sys, decode_records

log = logging.getLogger(__name__)

HALVES_IN_FLIGHT = 32
"""Per queue: local transactions run side by side, so the order of their messages means nothing."""
MAX_CHECKS = 64
"""Running at once; a broker that gets no answer asks again later."""


class State(Enum):
    """What became of the local transaction."""

    COMMIT = WIRE_COMMIT
    ROLLBACK = WIRE_ROLLBACK
    UNKNOWN = STATE_UNKNOWN
    """Not decided: the broker asks later."""


class Half(NamedTuple):
    """A half message that a broker asks about."""

    transaction_id: str
    """The message's UNIQ_KEY, the same that `execute` was given."""
    record: Record
    properties: dict[str, str]


class TransactionResult(NamedTuple):
    """Where the half message was stored, under which id, and what the broker was told."""

    half: SendResult
    transaction_id: str
    state: State


Execute = Callable[[OutgoingMessage, str], State | Awaitable[State]]
"""Runs the local transaction for a message and its transaction id."""
Check = Callable[[Half], State | Awaitable[State]]
Listener = Callable[[str, CheckTransactionHeader, Half], None]

_listeners: WeakKeyDictionary[BaseClient, dict[tuple[str, str], Listener]] = WeakKeyDictionary()
"""Who answers for the transactions of a group and topic, by client."""


class TransactionProducer:
    """Made inside a running loop, by `RocketmqClient.transaction_producer`; one per group and topic of a client."""

    def __init__(self, client: BaseClient, group: str, topic: str, check: Check, *, max_elapsed_s: float | None = None) -> None:
        listeners = _listeners.setdefault(client, {})
        if (group, topic) in listeners:
            raise LocalProtocolError(f"this client has a transaction producer of group {group} for {topic} already")
        self._client, self._check = client, check
        self._group, self._topic = group, topic
        self._producer = Producer(client, group, topic, in_flight_per_queue=HALVES_IN_FLIGHT, max_elapsed_s=max_elapsed_s)
        self._known_to_brokers = False
        self._checks = 0
        listeners[group, topic] = self._on_check
        client.on(Code.CHECK_TRANSACTION_STATE, partial(on_check, client))

    async def send(self, message: OutgoingMessage, execute: Execute, queue: Queue | None = None) -> TransactionResult:
        """Store the half message, run `execute`, tell the broker. Raises ClusterError when the half message cannot be stored.

        A half that a slave or the disk does not have for certain is rolled back, and `execute` is not run. If `execute` raises,
        the broker is told UNKNOWN, and the exception goes on. A transactional message has no delay: one that it says is left out.
        """
        await self._introduce()
        transaction_id = self._client.unique_id()
        half = await self._send_half(replace(message, delay_level=0, deliver_at=None), transaction_id, queue)
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

    async def close(self) -> None:
        """Close; from now on the broker asks other producers of the group."""
        _listeners[self._client].pop((self._group, self._topic), None)
        await self._producer.close()

    async def _introduce(self) -> None:
        """Brokers ask back over connections that had a heartbeat of the group."""
        await self._producer.queues()
        if not self._known_to_brokers:
            await self._client.heartbeat()
            self._known_to_brokers = True

    async def _send_half(self, message: OutgoingMessage, transaction_id: str, queue: Queue | None) -> SendResult:
        body, sys_flag = message.packed()
        pairs = [*message.pairs(transaction_id), (Name.TRAN_MSG, "true"), (Name.PGROUP, self._group)]
        chosen = queue or self._producer.choose(message)
        return await self._producer.send_single(
            chosen, body, props.encode(pairs), message.flag, sys_flag | Sys.PREPARED, message.born, movable=queue is None
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
        """Answer. If the check raises, the task's log says so, and the broker asks again."""
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


async def _outcome(said: State | Awaitable[State]) -> State:
    return await said if inspect.isawaitable(said) else said


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
    listener(address, asked, Half(transaction_id, record, properties))
