"""Producing to TubeMQ: each message is one request.

A share is the part of a batch for one partition. Its receipt, the result of `send`, is complete when every message is stored or
has failed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from zlib import crc32

from mqbridge.adapter.known_brokers import list_order
from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.target_order import TargetOrder
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.receipts import refused_whole
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, MappingError, MqbridgeError
from mqbridge.message import Partition, Position, Share
from mqbridge.net.failing_sends import longest_failing
from mqbridge.net.waiting_sends import Caller
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender
from mqbridge.tubemq.client.producer.send_result import SenderClosed, SendResult, failure_of
from mqbridge.tubemq.mapping.share import Requests, encode_share

REQUEST_OVERHEAD_BYTES = 450
"""Memory of a queued message in addition to its data. Measured with a million messages of 1 byte and of 20: 390 and 440 bytes."""

LastStored = Callable[
    [str, Mapping[int, str], Partition, Mapping[int, Position] | None, str | None], Awaitable[Mapping[int, Position]]
]
"""Function that returns the last position of a source that each partition of a topic has stored, by partition index.

The arguments are the topic, its partition names by index, the source, and optionally the positions from which to search and the
writer whose messages to find."""


class _PendingSend:
    """State of one `send` call of the outbound.

    `pending` is the number of messages without a result, `positions` and `failures` are the results of the others, and `future`
    is what `send` returned. `on_end` is called with the future when every message has a result.
    """

    __slots__ = ("failures", "future", "is_withdrawn", "on_end", "pending", "positions")

    def __init__(
        self, future: "asyncio.Future[Receipt]", count: int, on_end: "Callable[[asyncio.Future[Receipt]], object]"
    ) -> None:
        self.future = future
        self.pending = count
        self.on_end = on_end
        self.is_withdrawn = False
        """True once the caller has withdrawn this call; see `TubeMQOutbound.withdraw`."""
        self.positions: list[Position] = [()] * count
        """The stored positions by message index; () for a message that is pending or has failed."""
        self.failures: list[MessageFailure] = []

    def settle(self, index: int, result: SendResult | MqbridgeError) -> None:
        """Record the result of one message; the last result completes the receipt. A FATAL failure fails the future at once."""
        if isinstance(result, SendResult):
            self.positions[index] = (result.offset, 0)  # 0: the index among the messages at this offset; each is sent alone
        else:
            failure = failure_of(result)
            if isinstance(result, SenderClosed):  # this outbound was closed, so a retry with it cannot succeed
                failure, result = Failure.FATAL, ClusterError(str(result), Failure.FATAL)
            if failure is Failure.FATAL and not self.future.done():
                self.future.set_exception(result)
            self.failures.append(MessageFailure(index, failure, str(result)))
        self.pending -= 1
        if not self.pending:
            self.finish()

    def finish(self) -> None:
        """End with the receipt of all results."""
        self.failures.sort(key=lambda failure: failure.index)
        self.end(Receipt(self.positions, self.failures))

    def end(self, receipt: Receipt) -> None:
        """Call `on_end`, and set the receipt as the result of the future, unless an exception is set."""
        self.on_end(self.future)
        if not self.future.done():
            self.future.set_result(receipt)


class TubeMQOutbound:
    """The outbound into one topic."""

    formats = ()
    """The batch formats that are sent without decoding the batch: none."""

    def __init__(
        self,
        sender: PartitionSender,
        spec: OutboundSpec,
        zone: tzinfo,
        last_stored: LastStored,
        order: TargetOrder | None = None,
    ) -> None:
        self._sender, self._spec = sender, spec
        self._zone, self._last_stored = zone, last_stored
        self._names = sorted(sender.route.partitions, key=list_order)
        """The partitions' names, by index: by number first and then by Broker."""
        self.indexed = list(map(self._names.index, self._names if order is None else order.names))
        """The partition of each index by which `identity` and `table` choose; see `KeepsIndexes`."""
        self._key_order = list(map(self._names.index, sender.route.partitions))
        """The index of each partition, in the order in which this package's producers count partitions: by Broker first."""
        self._origin_prefix_of = replace(spec, stamp_origin=spec.stamp_origin or spec.sender is not None).origin_of
        """Returns the origin prefix to write for a source partition; None if messages keep their origins."""
        self._closed = False
        self._pending: dict[asyncio.Future[Receipt], _PendingSend] = {}
        """The `send` calls that have messages without a result, by the future that they returned."""
        self.partitions = len(self._names)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Encode the share and submit it to the partition's send queue."""
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(f"topic {self._spec.topic!r} has {self.partitions} partitions, but no partition {partition}")
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(ClusterError(f"the outbound of topic {self._spec.topic!r} is closed", Failure.FATAL))
            return future
        messages = share.messages
        name = self._names[partition]
        submit = self._sender.submit
        zone = self._zone
        send = self._pending[future] = _PendingSend(future, len(messages), self._pending.pop)
        if not messages:
            send.finish()
        requests = encode_share(messages, self._origin_prefix_of(share.batch.partition), zone)
        if self._spec.whole_shares and (refused := self._refused(requests, len(messages))):
            send.end(refused_whole(len(messages), refused))
            return future
        settle, caller = send.settle, Caller(future, share.batch.partition, (future,))
        failure_reasons, held_bytes = dict(requests.failures), 0
        for index in range(len(messages)):
            if index in failure_reasons:
                settle(index, MappingError(failure_reasons[index]))
            else:
                request = requests[index]  # (data, flag, msg_type, msg_time)
                held_bytes += len(request[0]) + REQUEST_OVERHEAD_BYTES
                submit(name, *request, done=partial(settle, index), caller=caller)
        share.held_bytes = held_bytes
        return future

    def _refused(self, requests: Requests, count: int) -> list[MessageFailure]:
        """Return the messages that cannot be stored, as far as this is known before they are sent."""
        reasons = dict(requests.failures)
        for index in range(count):
            if index not in reasons and (reason := self._sender.why_too_large(len(requests[index][0]))) is not None:
                reasons[index] = reason
        return [MessageFailure(index, Failure.REFUSED, reason) for index, reason in sorted(reasons.items())]

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Fail the queued messages of these sends. Their messages in flight are not retried if the response is lost."""
        for future in sends:
            if (send := self._pending.get(future)) is not None:
                send.is_withdrawn = True
        self._sender.withdraw(frozenset(sends))

    @property
    def send_failure(self) -> SendFailure | None:
        """Why sends to a partition fail; None while messages are stored."""
        failing = longest_failing(self._sender.failing)
        return None if failing is None else SendFailure(*failing)

    def partition_of(self, key: bytes) -> int:
        """Return the partition index of a key, chosen by CRC-32. TubeMQ's own producers have no keys and use round robin."""
        return self._key_order[crc32(key) % self.partitions]

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last stored positions of `source`, found in the origins of the messages that the topic has stored.

        `since` limits the search: each target partition is read backward down to its position there; None for no limit. Only
        `partitions` are searched, None: all. Does not fence other producers: TubeMQ has no way to do this.
        """
        names = {index: name for index, name in enumerate(self._names) if partitions is None or index in partitions}
        return await self._last_stored(self._spec.topic, names, source, since, self._spec.writer)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the receipts until `deadline` (event loop time; None: CLOSE_S (30 s) from now); sends still pending then fail.

        Withdrawn sends with messages in flight do not fail then: they get their receipts when the Broker has responded or
        the connection has ended.
        """
        if not self._closed:
            self._closed = True
            await self._sender.close(seconds_until(deadline))
            for future, send in self._pending.items():
                if not future.done() and not send.is_withdrawn:
                    problem = (
                        f"the outbound of topic {self._spec.topic!r} was closed before all messages of this send had a result"
                    )
                    future.set_exception(ClusterError(problem, Failure.FATAL))
