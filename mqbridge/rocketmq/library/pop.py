"""The requests of POP: receive messages, acknowledge them one by one, change the time until a redelivery.

With POP (brokers from 5.0 on), clients are not assigned queues, and do not commit offsets. A broker returns messages of any of
its queues, each with a receipt. A popped message is invisible to other consumers for `invisible_ms`; if it is not acknowledged
with its receipt within that time, the broker delivers it again, to any consumer of the group. So any number of consumers share a
topic, and a slow one delays no other. Messages are not in order, unless the pops are `orderly`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from mqbridge.errors import ClusterError, Failure, LocalProtocolError, ServerRefused
from mqbridge.net.connectivity import retry_log_level
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.client.admin.read_permission import why_unreadable
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.consumer.consumer_settings import StartOffset
from mqbridge.rocketmq.client.consumer.pulled_records import may_have_tag
from mqbridge.rocketmq.client.consumer.subscription import Subscription
from mqbridge.rocketmq.library.pop_receipts import make_batch_acks, make_receipts, popped_topic
from mqbridge.rocketmq.wire.bodies.pop import Assignment, AssignmentQuery, Assignments, BatchAcks
from mqbridge.rocketmq.wire.codes import V5_0_0, Code, Status, refusal_error
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.pop import AckHeader, ChangeInvisibleHeader, ChangeInvisibleResult, PopHeader, PopResult
from mqbridge.rocketmq.wire.receipts import ReceiptHandle
from mqbridge.rocketmq.wire.record import Record, decode_records

log = logging.getLogger(__name__)

MAX_POP_MESSAGES = 32
"""The brokers' limit of messages per pop."""
DEFAULT_INVISIBLE_MS = 60_000
"""Default time after which a broker redelivers a message that is not acknowledged."""
DEFAULT_POLL_MS = 15_000
"""Default time for which a broker holds a pop while it has no message."""
RESPONSE_MARGIN_S = 15.0
"""Timeout of a pop's response, counted from the end of the time for which the broker may hold the pop."""
CLOCK_TOLERANCE_MS = 500
"""A broker refuses a pop whose poll time ended longer ago than this, by the broker's clock."""
POLLING_FULL_PAUSE_S = 1.0
"""Pause after the response POLLING_FULL: the broker holds as many pops as it can."""
ANY_QUEUE = -1
"""Queue id of a pop that may return messages of any queue of the broker."""
_ACCEPTED_CODES = frozenset({Status.SUCCESS, Status.PULL_NOT_FOUND, Status.POLLING_FULL, Status.POLLING_TIMEOUT})
"""Codes of responses to a pop; all but SUCCESS come without messages."""


class Popped:
    """The result of a pop: the messages, each with its receipt, and roughly the number of messages that remain at the broker.

    `remaining` is 0 if the broker returned no messages.
    """

    __slots__ = ("messages", "remaining")

    def __init__(self, messages: list[tuple[Record, ReceiptHandle]], remaining: int) -> None:
        self.messages, self.remaining = messages, remaining


class Popper:
    """Sends the POP requests of one topic and group.

    A group without offsets starts at `start` (EARLIEST or LATEST). With `orderly`, a broker returns the next messages of a queue
    only when the previous ones are acknowledged. A broker holds a pop for `poll_ms` while it has no message.
    """

    def __init__(
        self,
        client: BaseClient,
        group: str,
        subscription: Subscription,
        *,
        start: StartOffset = StartOffset.EARLIEST,
        orderly: bool = False,
        invisible_ms: int = DEFAULT_INVISIBLE_MS,
        poll_ms: int = DEFAULT_POLL_MS,
        max_msgs: int = MAX_POP_MESSAGES,
    ) -> None:
        if start is StartOffset.TIMESTAMP or not 0 < max_msgs <= MAX_POP_MESSAGES:
            raise LocalProtocolError(
                f"invalid pops of topic {subscription.topic}: start is {start.name} (allowed: EARLIEST, LATEST), "
                f"max_msgs is {max_msgs} (allowed: 1 to {MAX_POP_MESSAGES})"
            )
        self._client = client
        self._brokers = Brokers(client)
        """Finds the addresses of brokers by their names, and sends requests to them."""
        self._group, self._subscription = group, subscription
        self._start, self._orderly = start, orderly
        self._invisible_ms, self._poll_ms, self._max_msgs = invisible_ms, poll_ms, max_msgs
        self._lacks_batch_acks = False
        """True once a broker has refused BATCH_ACK_MESSAGE as unknown; then each message is acknowledged by its own request."""

    async def brokers(self) -> list[str]:
        """Return the names of the brokers that have queues of the topic; each must be popped separately. Raises ClusterError."""
        route = await self._client.routes.get(self._subscription.topic)
        if route is None:
            raise ClusterError(
                f"no name server knows topic {self._subscription.topic}; create it, or correct the name", Failure.FATAL
            )
        if not (brokers := _brokers_of(route)):
            reason = await why_unreadable(Admin(self._client), self._subscription.topic)
            log.warning("group %s waits: %s", self._group, reason)
        return brokers

    def watch_brokers(self, on_change: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call `on_change` with the brokers of every changed route of the topic, until the returned function is called.

        A broker that was down comes back, and brokers are added: neither was in the first route.
        """
        return self._client.routes.watch(self._subscription.topic, lambda route: on_change(_brokers_of(route)))

    async def pop(self, broker: str, queue_id: int = ANY_QUEUE) -> Popped:
        """Pop messages of one queue of a broker, or of all its queues.

        The result is empty if there were none for `poll_ms`, or if the broker already holds as many pops as it can.

        Raises ServerRefused (FATAL if the broker does not support POP, or its clock is far ahead of ours), ClusterError, and
        RemoteProtocolError.
        """
        topic = self._subscription.topic
        address = await self._brokers.master(topic, broker)
        self._check_version(address)
        sent_at = time.monotonic()
        response = await self._request(address, self._header(queue_id))
        elapsed_ms = (time.monotonic() - sent_at) * 1000
        if response.code == Status.SUCCESS:
            return await self._decode(broker, response)
        # The broker compares its clock with the `born_time` of the request. If its clock is ahead, it reports the end of the poll
        # before it has waited: a response in less than half of the poll time is taken for this.
        if response.code == Status.POLLING_TIMEOUT and elapsed_ms < self._poll_ms / 2:
            raise ServerRefused(
                f"broker {address} reported at once that a pop of topic {topic} has timed out: its clock is ahead of ours by "
                f"more than {self._poll_ms + CLOCK_TOLERANCE_MS} ms. Synchronize the clocks",
                response.code,
                Failure.FATAL,
            )
        if response.code == Status.POLLING_FULL:
            await asyncio.sleep(POLLING_FULL_PAUSE_S)
        return Popped([], 0)

    def _check_version(self, address: str) -> None:
        version = self._client.broker_version(address)
        if version is not None and version < V5_0_0:  # None: the broker has not responded to a heartbeat yet
            raise self._unsupported_error(address, f"its version number {version} is lower than that of 5.0.0, {V5_0_0}")

    def _unsupported_error(self, address: str, reason: str) -> ServerRefused:
        problem = (
            f"broker {address} cannot pop topic {self._subscription.topic}: {reason}. Use `consumer` instead of `pop_consumer`"
        )
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
            exp_type=self._subscription.expression_type,
            exp=self._subscription.expression,
            order=self._orderly,
        ).encode()

    async def _request(self, address: str, ext: dict[str, str]) -> Command:
        topic, timeout = self._subscription.topic, self._poll_ms / 1000 + RESPONSE_MARGIN_S
        try:
            return await self._brokers.request_at(address, topic, Code.POP_MESSAGE, ext, timeout=timeout, accept=_ACCEPTED_CODES)
        except ServerRefused as error:
            if error.code == Status.REQUEST_CODE_NOT_SUPPORTED:
                raise self._unsupported_error(address, str(error)) from error
            raise

    async def _decode(self, broker: str, response: Command) -> Popped:
        """Decode the messages of a response, and keep those with a subscribed tag.

        Brokers compare only hashes of tags, so a response may contain other tags. Like the Java client, this method acknowledges
        messages with other tags; otherwise the broker would deliver them again and again.
        """
        header = PopResult.decode(response.ext)
        records = decode_records(response.body)
        messages = list(zip(records, make_receipts(broker, header, records), strict=True))
        tags = {tag.encode() for tag in self._subscription.tags}
        if not tags:
            return Popped(messages, header.rest_num)
        subscribed = [(record, receipt) for record, receipt in messages if may_have_tag(record, tags)]
        other_receipts = [receipt for record, receipt in messages if not may_have_tag(record, tags)]
        try:
            await self.acknowledge(other_receipts)
        except ClusterError as error:
            log.log(
                retry_log_level(error, logging.INFO),
                "acknowledging %d messages of topic %s with unsubscribed tags failed (%s); the broker will redeliver them",
                len(other_receipts),
                self._subscription.topic,
                error,
            )
        return Popped(subscribed, header.rest_num)

    # --- acknowledging ----------------------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Iterable[ReceiptHandle]) -> None:
        """Acknowledge messages. Raises ClusterError if a request fails; the broker redelivers the messages of that request."""
        by_broker: dict[str, list[ReceiptHandle]] = {}
        for receipt in receipts:
            by_broker.setdefault(receipt.broker, []).append(receipt)
        await asyncio.gather(*(self._acknowledge(*item) for item in by_broker.items()))

    async def _acknowledge(self, broker: str, receipts: list[ReceiptHandle]) -> None:
        address = await self._brokers.master(self._subscription.topic, broker)
        if len(receipts) > 1 and not self._lacks_batch_acks:
            body = BatchAcks(broker, tuple(make_batch_acks(self._group, self._subscription.topic, receipts))).encode()
            try:
                await self._brokers.request_at(address, self._subscription.topic, Code.BATCH_ACK_MESSAGE, {}, body)
            except ServerRefused as error:
                if error.code != Status.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._lacks_batch_acks = True
            else:
                return
        await asyncio.gather(*(self._acknowledge_one(address, receipt) for receipt in receipts))

    async def _acknowledge_one(self, address: str, receipt: ReceiptHandle) -> None:
        topic = popped_topic(self._group, self._subscription.topic, receipt.retry)  # a retry topic for redelivered messages
        ext = AckHeader(self._group, topic, receipt.queue, str(receipt), receipt.offset).encode()
        await self._brokers.request_at(address, self._subscription.topic, Code.ACK_MESSAGE, ext)

    async def change_invisible(self, receipt: ReceiptHandle, invisible_ms: int) -> ReceiptHandle:
        """Redeliver the message `invisible_ms` from now instead of at its present timeout. Return its new receipt.

        Only an acknowledgement with the new receipt prevents this redelivery. Raises ClusterError.
        """
        topic = popped_topic(self._group, self._subscription.topic, receipt.retry)
        address = await self._brokers.master(self._subscription.topic, receipt.broker)
        ext = ChangeInvisibleHeader(self._group, topic, receipt.queue, str(receipt), receipt.offset, invisible_ms).encode()
        response = await self._brokers.request_at(address, self._subscription.topic, Code.CHANGE_MESSAGE_INVISIBLETIME, ext)
        changed = ChangeInvisibleResult.decode(response.ext)
        return receipt._replace(
            start=receipt.offset,  # the broker keeps the message in a record of its own, which starts at this offset
            pop_time=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )

    async def assignments(self, strategy: str = "AVG") -> list[Assignment]:
        """Query which queues a broker assigns to this client, each with the mode in which to read it: PULL or POP.

        `strategy` is the name of an allocation strategy of the broker. Raises ClusterError.
        """
        brokers = await self.brokers()
        if not brokers:
            raise ClusterError(await why_unreadable(Admin(self._client), self._subscription.topic), Failure.RETRY)
        address = await self._brokers.master(self._subscription.topic, brokers[0])  # any broker of the topic can answer
        query = AssignmentQuery(self._subscription.topic, self._group, self._client.client_id, strategy)
        body = query.encode()
        response = await self._brokers.request_at(address, self._subscription.topic, Code.QUERY_ASSIGNMENT, {}, body)
        assignments = Assignments.decode(response.body).assignments
        if assignments is None:
            request = f"QUERY_ASSIGNMENT for group {self._group} and topic {self._subscription.topic} at {address}"
            raise refusal_error(request, Status.SYSTEM_ERROR, "the response contains no assignment for this client")
        return list(assignments)


def _brokers_of(route: TopicRoute) -> list[str]:
    return sorted({queue.broker for queue in route.read_queues()})
