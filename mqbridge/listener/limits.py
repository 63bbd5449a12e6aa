"""Limits of a listener that its feeds and connections share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from mqbridge.errors import ClusterError

GROUP_SHARE, ALONE_SHARE = 4, 2
"""A feed holds at most this fraction (1/GROUP_SHARE) of the unacknowledged bytes of its listener, and more only as long as all
feeds together hold less than 1/ALONE_SHARE: a group that is alone may have large messages that it acknowledges together."""
READ_BYTES, LARGE_READ_BYTES = 128 << 10, 512 << 10
"""Maximum bytes of the batch that a feed reads at once, and of one while there is room: then a read, and what comes of it, costs
less per byte. A feed that holds nothing may read a batch even if the limit of the listener is reached: so stuck consumers of some
groups do not stop the others, and each feed holds at most one batch of READ_BYTES, or one larger unit or row, beyond it."""
LANE_BYTES = 1 << 20
"""Bytes that a membership in a group of the cluster reads ahead. A log reads a quarter at once, and what is larger twice."""

REQUEST_TIMEOUT_S = 60.0
"""Timeout of what a client asks of the cluster. Each request has a much shorter one, but there may be several in sequence."""


@asynccontextmanager
async def limited(action: str) -> AsyncIterator[None]:
    """Limit the time of an action that asks the cluster. Raises ClusterError after REQUEST_TIMEOUT_S."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            yield
    except TimeoutError:
        raise ClusterError(f"{action} did not finish within {REQUEST_TIMEOUT_S:g} s") from None


class InFlightBytes:
    """Counts bytes that are in memory already; whoever brings more waits while the limit is reached.

    A listener has one for what clients have sent and what is not stored yet: beyond the limit, no more is read from clients.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is in bytes."""
        self.limit = limit
        self.used = 0
        self._waiting: dict[Callable[[], None], None] = {}
        """Functions of those that wait for room, in the order of their calls; each is called once."""

    @property
    def is_full(self) -> bool:
        """True if nobody is to bring more."""
        return self.used >= self.limit

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when bytes were released, and there is room."""
        self._waiting[wake] = None

    def add(self, size: int) -> None:
        """Count more bytes."""
        self.used += size

    def release(self, size: int) -> None:
        """Count bytes no longer, and wake those that wait if there is room."""
        self.used -= size
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting:
                asyncio.get_running_loop().call_soon(wake)  # by itself: an error in one does not keep the others waiting


class UnacknowledgedBytes(InFlightBytes):
    """Counts the bytes that all feeds of a listener hold because they are not acknowledged."""

    def __init__(self, limit: int) -> None:
        """`limit` is in bytes."""
        super().__init__(limit)
        self.open = 0
        """Bytes of the units that are not acknowledged. The others in `used` are of batches of which these units are a part."""
        self._large_reads = 0
        """Number of batches of LARGE_READ_BYTES that are being read."""

    @contextmanager
    def reading(self) -> Iterator[int]:
        """Yield the maximum bytes of the batch that a feed reads in this block: many while there is room for all that read so.

        Few, too, while most bytes are held because of single units that are not acknowledged: each of them holds a whole batch.
        """
        is_large = self.used + (self._large_reads + 1) * LARGE_READ_BYTES <= self.limit // ALONE_SHARE
        is_large = is_large and self.used <= 2 * self.open + 2 * LARGE_READ_BYTES
        self._large_reads += is_large
        try:
            yield LARGE_READ_BYTES if is_large else READ_BYTES
        finally:
            self._large_reads -= is_large

    def may_read(self, own: int) -> bool:
        """Return True if a feed that holds `own` bytes may read another batch now."""
        is_alone = self.used < self.limit // ALONE_SHARE
        return not own or is_alone or (own < self.limit // GROUP_SHARE and not self.is_full)
