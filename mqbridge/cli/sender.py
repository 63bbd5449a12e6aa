"""Sends messages of the command line: many in flight, bounded in bytes, in order per partition."""

import asyncio
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter import Outbound, Receipt
from mqbridge.delivery.budget import Budget
from mqbridge.errors import ClusterError
from mqbridge.message import Message, Position

IN_FLIGHT_BYTES = 16 << 20
MESSAGE_COST_BYTES = 200
"""What a message costs beside its payload."""
CHUNK_MESSAGES = 500
REASONS_KEPT = 5


class Sender:
    """Puts messages into one outbound and counts what became of them."""

    def __init__(self, outbound: Outbound, partition: int | None = None) -> None:
        self._outbound = outbound
        self._partition = partition
        self._turn = -1
        self._budget = Budget(IN_FLIGHT_BYTES)
        self._in_flight: set[asyncio.Future[Receipt]] = set()
        self._error: BaseException | None = None
        self.stored = 0
        self.refused = 0
        self.reasons: list[str] = []
        """The first reasons of refused messages."""
        self.positions: dict[int, Position] = {}
        """The last stored position by partition index."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Send, in chunks; waits only while too much is in flight. Raises ClusterError when the outbound failed."""
        for start in range(0, len(messages), CHUNK_MESSAGES):
            self._turn = (self._turn + 1) % self._outbound.partitions
            for place, share in self._divide(messages[start : start + CHUNK_MESSAGES]).items():
                await self._send(place, share)

    def _divide(self, messages: Sequence[Message]) -> dict[int, list[Message]]:
        shares: dict[int, list[Message]] = {}
        for message in messages:
            shares.setdefault(self._place(message.key), []).append(message)
        return shares

    def _place(self, key: str | bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        return self._turn if key is None else self._outbound.partition_of(key.encode() if isinstance(key, str) else key)

    async def _send(self, place: int, messages: list[Message]) -> None:
        size = sum(len(message.payload or b"") + MESSAGE_COST_BYTES for message in messages)
        await self._budget.take(size)
        self._check()
        future = self._outbound.send(place, messages, None)
        self._in_flight.add(future)
        future.add_done_callback(partial(self._done, place, len(messages), size))

    def _done(self, place: int, count: int, size: int, future: "asyncio.Future[Receipt]") -> None:
        self._in_flight.discard(future)
        self._budget.give(size)
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._error = self._error or error
            return
        receipt = future.result()
        self.refused += len(receipt.failures)
        self.stored += count - len(receipt.failures)
        self.reasons += [failure.reason for failure in receipt.failures][: REASONS_KEPT - len(self.reasons)]
        if receipt.position:
            self.positions[place] = receipt.position

    async def finish(self) -> None:
        """Wait until everything has its receipt. Raises ClusterError when the outbound failed."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        self._check()

    async def close(self) -> None:
        """Let the outbound go."""
        await self._outbound.close()

    def _check(self) -> None:
        if isinstance(self._error, ClusterError):
            raise self._error
        if self._error is not None:
            raise ClusterError(f"sending failed: {self._error}") from self._error
