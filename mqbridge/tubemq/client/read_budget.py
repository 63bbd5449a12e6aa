"""Bounds what the gets of one consumer may bring at once, so that no Broker takes the room of the others."""

import asyncio
import contextlib
from collections import deque

from mqbridge.tubemq.wire.text import Broker

GET_BYTES = 1 << 20
"""Reserved for a get: its answer is half a MiB, or one message that may have a little over 1 MiB."""


class _Share:
    """What one Broker's gets have reserved, and those that wait for room."""

    __slots__ = ("used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class ReadBudget:
    """`max_bytes` in equal shares by Broker: one that falls silent keeps no more than its own.

    However small a share is, one get fits into it. With `counts_packs` a pack counts until its reader has taken it on another
    account (`HeldPartition.pack_taken`); without, only answers that are on their way count.
    """

    def __init__(self, max_bytes: int, *, counts_packs: bool = False) -> None:
        self.counts_packs = counts_packs
        self._max_bytes = self._share_bytes = max_bytes
        self._shares: dict[Broker, _Share] = {}

    @property
    def used(self) -> int:
        """Bytes that are reserved or held, of all Brokers together."""
        return sum(share.used for share in self._shares.values())

    def share_among(self, brokers: set[Broker]) -> None:
        """These Brokers are read from now."""
        self._share_bytes = self._max_bytes // max(1, len(brokers))
        self._shares = {broker: share for broker, share in self._shares.items() if broker in brokers or share.used}
        for share in self._shares.values():
            self._grant(share)

    async def take(self, broker: Broker) -> None:
        """Wait, in turn, until another get to this Broker has room, and reserve GET_BYTES."""
        share = self._shares.setdefault(broker, _Share())
        if not share.waiting and self._fits(share):
            share.used += GET_BYTES
            return
        future = asyncio.get_running_loop().create_future()
        share.waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(broker, GET_BYTES)  # granted in the turn in which we were cancelled
            else:
                with contextlib.suppress(ValueError):
                    share.waiting.remove(future)
            raise

    def give(self, broker: Broker, size: int) -> None:
        """Return bytes; a negative size is what a get brought beyond its reservation."""
        share = self._shares[broker]
        share.used -= size
        self._grant(share)

    def _grant(self, share: _Share) -> None:
        while share.waiting and self._fits(share):
            future = share.waiting.popleft()
            if not future.done():
                share.used += GET_BYTES
                future.set_result(None)

    def _fits(self, share: _Share) -> bool:
        return not share.used or share.used + GET_BYTES <= self._share_bytes
