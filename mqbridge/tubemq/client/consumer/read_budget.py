"""Limits the bytes that one consumer requests from Brokers at once, in equal shares per Broker."""

import asyncio
import contextlib
from collections import deque

from mqbridge.tubemq.wire.string_formats import Broker

GET_BYTES = 1 << 20
"""Bytes reserved for a get: its response has about half a MiB, or one message of at most a little over 1 MiB."""


class _Share:
    """One Broker's share: `used` bytes are reserved or counted, and `waiting` contains the futures of gets that wait for room."""

    __slots__ = ("used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class ReadBudget:
    """A budget of `max_bytes` in equal shares per Broker, so that an unresponsive Broker blocks only its own share.

    A share always allows one get, even if it is smaller than GET_BYTES. With `counts_packs=True` the bytes of a pack (the
    messages of a response) count until its reader calls `HeldPartition.release_pack_bytes`; with False only gets in flight count.
    """

    def __init__(self, max_bytes: int, *, counts_packs: bool = False) -> None:
        self.counts_packs = counts_packs
        self._max_bytes = self._share_bytes = max_bytes
        self._shares: dict[Broker, _Share] = {}

    @property
    def used(self) -> int:
        """Bytes reserved for gets or counted for packs, of all Brokers together."""
        return sum(share.used for share in self._shares.values())

    def share_among(self, brokers: set[Broker]) -> None:
        """Divide the budget among these Brokers, those of the consumer's partitions, from now on."""
        self._share_bytes = self._max_bytes // max(1, len(brokers))
        # A share in use stays, also if its Broker is no longer listed: `release` still has to find it.
        self._shares = {broker: share for broker, share in self._shares.items() if broker in brokers or share.used}
        for share in self._shares.values():
            self._grant(share)

    async def reserve(self, broker: Broker) -> None:
        """Wait until this Broker's share has room for another get, then reserve GET_BYTES. Waiting gets are served in order."""
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
                self.release(broker, GET_BYTES)  # the cancellation came after the bytes were granted
            else:
                with contextlib.suppress(ValueError):
                    share.waiting.remove(future)
            raise

    def release(self, broker: Broker, size: int) -> None:
        """Release `size` bytes of the Broker's share.

        The size is negative if a response is larger than its reservation: the additional bytes are then counted.
        """
        share = self._shares[broker]
        share.used -= size
        self._grant(share)

    def _grant(self, share: _Share) -> None:
        """Reserve bytes for waiting gets while the share has room."""
        while share.waiting and self._fits(share):
            future = share.waiting.popleft()
            if not future.done():
                share.used += GET_BYTES
                future.set_result(None)

    def _fits(self, share: _Share) -> bool:
        return not share.used or share.used + GET_BYTES <= self._share_bytes
