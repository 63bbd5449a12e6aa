"""POP (5.x): the broker delivers messages of any queue, and redelivers each that is not acknowledged within a time.

A message is acknowledged by its receipt; until its timeout no other popper gets it. The group has no members, no assignment of
queues and no offsets: any number of poppers share a topic, and a slow one delays no other. Messages are not in order. Brokers
before 5.0 do not support POP.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from mqbridge.errors import ClusterError, Failure, LocalProtocolError, ServerRefused
from mqbridge.net.connectivity import level_of
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.consumer_settings import StartOffset
from mqbridge.rocketmq.client.pulled_records import tag_of
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.library.pop_receipts import batch_acks, make_receipts, popped_topic
from mqbridge.rocketmq.wire.bodies.pop import Assignment, AssignmentQuery, Assignments, BatchAcks
from mqbridge.rocketmq.wire.codes import V5_0_0, Code, Status, refused
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.pop import AckHeader, ChangeInvisibleHeader, ChangeInvisibleResult, PopHeader, PopResult
from mqbridge.rocketmq.wire.receipts import Receipt
from mqbridge.rocketmq.wire.record import Record, decode_records

log = logging.getLogger(__name__)

MAX_MSGS = 32
"""Brokers' limit of messages per pop."""
INVISIBLE_MS = 60_000
"""Default time after which a broker redelivers a message that is not acknowledged."""
POLL_MS = 15_000
"""Default time for which a broker holds a pop while it has no message."""
ANSWER_MORE_S = 15.0
"""Time allowed for the response after the end of the poll."""
FULL_WAIT_S = 1.0
"""Pause after POLLING_FULL: the broker has reached its limit of waiting polls."""
ANY_QUEUE = -1
_ANSWERS = frozenset({Status.SUCCESS, Status.PULL_NOT_FOUND, Status.POLLING_FULL, Status.POLLING_TIMEOUT})


class Popped:
    """The result of a pop: `messages` with their receipts; `rest` is roughly the number of messages that are left."""

    __slots__ = ("messages", "rest")

    def __init__(self, messages: list[tuple[Record, Receipt]], rest: int) -> None:
        self.messages, self.rest = messages, rest


class Popper:
    """Pops the messages of one topic for one group. A new group starts at `start` (EARLIEST or LATEST)."""

    def __init__(
        self,
        client: BaseClient,
        group: str,
        subscription: Subscription,
        *,
        start: StartOffset = StartOffset.EARLIEST,
        orderly: bool = False,
        invisible_ms: int = INVISIBLE_MS,
        poll_ms: int = POLL_MS,
        max_msgs: int = MAX_MSGS,
    ) -> None:
        if start is StartOffset.TIMESTAMP or not 0 < max_msgs <= MAX_MSGS:
            raise LocalProtocolError(f"a pop starts at EARLIEST or LATEST and requests 1 to {MAX_MSGS} messages, not {max_msgs}")
        self._client, self._brokers = client, Brokers(client)
        self._group, self._subscription = group, subscription
        self._start, self._orderly = start, orderly
        self._invisible_ms, self._poll_ms, self._max_msgs = invisible_ms, poll_ms, max_msgs
        self._lacks_batch_acks = False
        """True if a broker refused BATCH_ACK_MESSAGE, because it is too old."""

    async def brokers(self) -> list[str]:
        """Return the names of the brokers that have the topic; each needs pops of its own. Raises ClusterError."""
        route = await self._client.routes.get(self._subscription.topic)
        if route is None:
            raise ClusterError(f"topic {self._subscription.topic} is not known to any name server", Failure.FATAL)
        return sorted({queue.broker for queue in route.read_queues()})

    async def pop(self, broker: str, queue_id: int = ANY_QUEUE) -> Popped:
        """Pop messages of a broker; return none if it had none for `poll_ms`.

        Raises ServerRefused (FATAL if the broker does not support POP, or its clock differs from ours), ClusterError,
        RemoteProtocolError.
        """
        topic = self._subscription.topic
        address = await self._brokers.master(topic, broker)
        self._check_version(address)
        sent_at = time.monotonic()
        response = await self._request(address, self._header(queue_id))
        if response.code == Status.SUCCESS:
            return await self._decode(broker, response)
        if response.code == Status.POLLING_TIMEOUT and (time.monotonic() - sent_at) * 2000 < self._poll_ms:
            raise ServerRefused(
                f"{address} reported at once that a pop of {topic} has waited too long: its clock is ahead of ours by more than "
                f"{self._poll_ms + 500} ms. Synchronize the clocks",
                response.code,
                Failure.FATAL,
            )
        if response.code == Status.POLLING_FULL:
            await asyncio.sleep(FULL_WAIT_S)
        return Popped([], 0)

    def _check_version(self, address: str) -> None:
        version = self._client.broker_version(address)
        if version is not None and version < V5_0_0:
            raise self._too_old(address, f"its version is {version}, and POP needs {V5_0_0} (5.0.0)")

    def _too_old(self, address: str, why: str) -> ServerRefused:
        problem = f"{address} cannot pop {self._subscription.topic}: {why}. Use `consumer` instead of `pop_consumer`"
        return ServerRefused(problem, Status.REQUEST_CODE_NOT_SUPPORTED, Failure.FATAL)

    def _header(self, queue_id: int) -> dict[str, str]:
        return PopHeader(
            consumer_group=self._group,
            topic=self._subscription.topic,
            queue_id=queue_id,
            max_msg_nums=self._max_msgs,
            invisible_time=self._invisible_ms,
            poll_time=self._poll_ms,
            born_time=time.time_ns() // 1_000_000,
            init_mode=1 if self._start is StartOffset.LATEST else 0,
            exp_type=self._subscription.kind,
            exp=self._subscription.expression,
            order=self._orderly,
        ).encode()

    async def _request(self, address: str, ext: dict[str, str]) -> Command:
        topic, timeout = self._subscription.topic, self._poll_ms / 1000 + ANSWER_MORE_S
        try:
            return await self._brokers.ask_at(address, topic, Code.POP_MESSAGE, ext, timeout=timeout, accept=_ANSWERS)
        except ServerRefused as error:
            if error.code == Status.REQUEST_CODE_NOT_SUPPORTED:
                raise self._too_old(address, str(error)) from error
            raise

    async def _decode(self, broker: str, response: Command) -> Popped:
        """Decode the messages, and acknowledge those with other tags, as Java does: brokers compare only hashes of tags."""
        header = PopResult.decode(response.ext)
        records = decode_records(response.body)
        messages = list(zip(records, make_receipts(broker, header, records), strict=True))
        tags = {tag.encode() for tag in self._subscription.tags}
        if not tags:
            return Popped(messages, header.rest_num)
        wanted = [(record, receipt) for record, receipt in messages if tag_of(record) in tags]
        others = [receipt for record, receipt in messages if tag_of(record) not in tags]
        try:
            await self.acknowledge(others)
        except ClusterError as error:
            log.log(
                level_of(error, logging.INFO),
                "acknowledging %d messages with other tags failed; the broker redelivers them: %s",
                len(others),
                error,
            )
        return Popped(wanted, header.rest_num)

    # --- acknowledging ----------------------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Iterable[Receipt]) -> None:
        """Acknowledge consumed messages. Raises ClusterError; the broker redelivers those not acknowledged."""
        by_broker: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            by_broker.setdefault(receipt.broker, []).append(receipt)
        await asyncio.gather(*(self._acknowledge(*item) for item in by_broker.items()))

    async def _acknowledge(self, broker: str, receipts: list[Receipt]) -> None:
        address = await self._brokers.master(self._subscription.topic, broker)
        if len(receipts) > 1 and not self._lacks_batch_acks:
            body = BatchAcks(broker, tuple(batch_acks(self._group, self._subscription.topic, receipts))).encode()
            try:
                await self._brokers.ask_at(address, self._subscription.topic, Code.BATCH_ACK_MESSAGE, {}, body)
            except ServerRefused as error:
                if error.code != Status.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._lacks_batch_acks = True
            else:
                return
        await asyncio.gather(*(self._acknowledge_one(address, receipt) for receipt in receipts))

    async def _acknowledge_one(self, address: str, receipt: Receipt) -> None:
        topic = popped_topic(self._group, self._subscription.topic, receipt.retry)
        ext = AckHeader(self._group, topic, receipt.queue, str(receipt), receipt.offset).encode()
        await self._brokers.ask_at(address, self._subscription.topic, Code.ACK_MESSAGE, ext)

    async def change_invisible(self, receipt: Receipt, invisible_ms: int) -> Receipt:
        """Redeliver the message in `invisible_ms` from now, unless it is acknowledged with the receipt that this returns."""
        topic = popped_topic(self._group, self._subscription.topic, receipt.retry)
        address = await self._brokers.master(self._subscription.topic, receipt.broker)
        ext = ChangeInvisibleHeader(self._group, topic, receipt.queue, str(receipt), receipt.offset, invisible_ms).encode()
        response = await self._brokers.ask_at(address, self._subscription.topic, Code.CHANGE_MESSAGE_INVISIBLETIME, ext)
        changed = ChangeInvisibleResult.decode(response.ext)
        return receipt._replace(
            start=receipt.offset,
            pop_time=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )

    async def assignments(self, strategy: str = "AVG") -> list[Assignment]:
        """Return the queues that a broker assigns to this client, each with its mode, pull or pop. Raises ClusterError."""
        broker = (await self.brokers())[0]
        address = await self._brokers.master(self._subscription.topic, broker)
        query = AssignmentQuery(self._subscription.topic, self._group, self._client.client_id, strategy)
        body = query.encode()
        response = await self._brokers.ask_at(address, self._subscription.topic, Code.QUERY_ASSIGNMENT, {}, body)
        assignments = Assignments.decode(response.body).assignments
        if assignments is None:
            problem = "the response has no assignment for this client"
            raise refused(f"QUERY_ASSIGNMENT for {self._group} at {address}", Status.SYSTEM_ERROR, problem)
        return list(assignments)
