"""Bounds the bytes that the gets of one consumer may bring at once, in equal shares per Broker."""

import asyncio
import contextlib
from collections import deque

from mqbridge.tubemq.wire.string_formats import Broker

GET_BYTES = 1 << 20
"""Bytes reserved for a get: its response is half a MiB, or one message of a little over 1 MiB."""


class _Share:
    """Bytes reserved by one Broker's gets, and the gets waiting for room."""

    __slots__ = ("used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class ReadBudget:
    """`max_bytes` in equal shares by Broker, so that a silent Broker blocks no more than its own share.

    One get fits into a share, however small. With `counts_packs` a pack counts until its reader accounts for it elsewhere
    (`HeldPartition.release_pack_bytes`); without, only responses in flight count.
    """

    def __init__(self, max_bytes: int, *, counts_packs: bool = False) -> None:
        self.counts_packs = counts_packs
        self._max_bytes = self._share_bytes = max_bytes
        self._shares: dict[Broker, _Share] = {}

    @property
    def used(self) -> int:
        """Bytes reserved or held, of all Brokers together."""
        return sum(share.used for share in self._shares.values())

    def share_among(self, brokers: set[Broker]) -> None:
        """Divide the budget among these Brokers from now on."""
        self._share_bytes = self._max_bytes // max(1, len(brokers))
        self._shares = {broker: share for broker, share in self._shares.items() if broker in brokers or share.used}
        for share in self._shares.values():
            self._grant(share)

    async def reserve(self, broker: Broker) -> None:
        """Wait, in order, until there is room for another get to this Broker, and reserve GET_BYTES."""
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
                self.release(broker, GET_BYTES)  # granted in the loop iteration in which we were cancelled
            else:
                with contextlib.suppress(ValueError):
                    share.waiting.remove(future)
            raise

    def release(self, broker: Broker, size: int) -> None:
        """Release bytes; a negative size adds the bytes that a get brought beyond its reservation."""
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
