"""Sends the messages of `produce` and `quickstart`: many in flight, bounded in bytes, in order per partition."""

import asyncio
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.outbound import Outbound, ReportsSendFailure
from mqbridge.adapter.receipt import Receipt
from mqbridge.delivery.target import TargetProgress
from mqbridge.errors import ClusterError
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.net.budget import Budget

IN_FLIGHT_BYTES = 16 << 20
"""Maximum memory of messages that have no receipt yet."""
MESSAGE_COST_BYTES = 200
"""Approximate memory of a message without its payload."""
CHUNK_MESSAGES = 500
"""Maximum number of messages in one chunk. Those without a key go to one partition, those of the next chunk to the next one."""
PACE_S = 0.05
"""With a rate limit, a chunk has the messages that may be sent in this time."""
RECEIPTS_TIMEOUT_S = 1.0
"""How long `Sender.close` waits for the receipts after the outbound is closed. They should have arrived by then."""
MAX_REASONS = 5
"""Maximum length of `Sender.refusal_reasons`."""


class Sender:
    """Sends messages to one outbound, and counts how many were stored and how many were refused.

    `partition` is the index of the partition for all messages. Without it, the key of a message chooses the partition, and
    messages without a key are spread round robin. `rate` is in messages per second (None: no limit).
    """

    def __init__(self, outbound: Outbound, partition: int | None = None, *, rate: float | None = None) -> None:
        self._outbound = outbound
        self._partition = partition
        self._rate = rate
        self._chunk_messages = CHUNK_MESSAGES if rate is None else max(1, min(CHUNK_MESSAGES, int(rate * PACE_S)))
        self._next_send_at = 0.0
        """Loop time before which the rate allows no further send."""
        self._round_robin_index = -1
        """Index of the partition for the messages without a key of the current chunk; -1 before the first chunk."""
        self._budget = Budget(IN_FLIGHT_BYTES)
        self._in_flight: set[asyncio.Future[Receipt]] = set()
        self._error: BaseException | None = None
        """The first error of a send that failed as a whole; no more messages are sent after it."""
        self._progress = TargetProgress()
        self.in_flight_messages = 0
        """Number of messages that were sent and have no receipt yet."""
        self.stored = 0
        self.refused = 0
        self.refusal_reasons: list[str] = []
        """Why the first refused messages were refused."""
        self.positions: dict[int, Position] = {}
        """The last stored position, by partition index."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Send the messages in chunks. Waits as the rate requires, and while too much is in flight.

        Raises ClusterError if the outbound failed.
        """
        for start in range(0, len(messages), self._chunk_messages):
            chunk = messages[start : start + self._chunk_messages]
            await self._pace(len(chunk))
            self._round_robin_index = (self._round_robin_index + 1) % self._outbound.partitions
            for partition, share in self._group_by_partition(chunk).items():
                await self._send(partition, share)

    async def _pace(self, count: int) -> None:
        """Wait until `count` messages may be sent at the configured rate."""
        if self._rate is not None:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, self._next_send_at - now))
            self._next_send_at = max(self._next_send_at, now) + count / self._rate

    def _group_by_partition(self, messages: Sequence[Message]) -> dict[int, list[Message]]:
        """Return the messages by partition index. The ordering key replaces a missing key."""
        shares: dict[int, list[Message]] = {}
        for message in messages:
            key = message.ordering_key if message.key is None else message.key
            shares.setdefault(self._partition_for(key), []).append(message)
        return shares

    def _partition_for(self, key: str | bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        return (
            self._round_robin_index if key is None else self._outbound.partition_of(key.encode() if isinstance(key, str) else key)
        )

    async def _send(self, partition: int, messages: list[Message]) -> None:
        """Wait for room in the budget and send the messages to one partition. Raises ClusterError if an earlier send failed."""
        size = sum(len(message.payload or b"") + MESSAGE_COST_BYTES for message in messages)
        await self._budget.reserve(size)
        self._raise_error()
        future = self._outbound.send(partition, Share(Batch.of(messages)))
        self._in_flight.add(future)
        self._progress.count_send()
        self.in_flight_messages += len(messages)
        future.add_done_callback(partial(self._on_receipt, partition, len(messages), size))

    def _on_receipt(self, partition: int, count: int, size: int, future: "asyncio.Future[Receipt]") -> None:
        """Count the stored and refused messages of a send of `count` messages, and free its `size` bytes of the budget."""
        self._in_flight.discard(future)
        self._progress.count_receipt()
        self.in_flight_messages -= count
        self._budget.release(size)
        if future.cancelled():  # nobody knows whether its messages were stored: count them as neither
            return
        if (error := future.exception()) is not None:
            self._error = self._error or error
            return
        receipt = future.result()
        self.refused += len(receipt.failures)
        self.stored += count - len(receipt.failures)
        self.refusal_reasons += [failure.reason for failure in receipt.failures][: MAX_REASONS - len(self.refusal_reasons)]
        if receipt.highest_position:  # () if no message was stored, or if the cluster does not tell positions
            self.positions[partition] = receipt.highest_position

    async def finish(self) -> None:
        """Wait until every message has its receipt. Raises ClusterError if the outbound failed."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        self._raise_error()

    def waiting_s(self) -> float:
        """Return the seconds without a receipt while messages are in flight; 0 if none is."""
        return self._progress.waiting_s(asyncio.get_running_loop().time())

    @property
    def failure_reason(self) -> str | None:
        """Why sends fail now and are retried; None while messages are stored, or if the system does not tell."""
        outbound = self._outbound
        failure = outbound.send_failure if isinstance(outbound, ReportsSendFailure) else None
        return None if failure is None else failure.reason

    async def close(self, deadline: float | None = None) -> None:
        """Close the outbound, which waits for the messages in flight until `deadline` (loop time; None: its own deadline)."""
        await self._outbound.close(deadline)
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=RECEIPTS_TIMEOUT_S)

    def _raise_error(self) -> None:
        """Raise the first error, if there is one, as ClusterError."""
        if isinstance(self._error, ClusterError):
            raise self._error
        if self._error is not None:
            raise ClusterError(f"sending failed, so no more messages are sent: {self._error}") from self._error
