"""What a lane has sent and is not known to be stored: per target partition, in order.

Dead letters are sends like all others: they are waited for, and taken back, in the same way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import takewhile

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import Failure
from mqbridge.message import Share

Ended = Callable[["asyncio.Future[Receipt]"], None]


class Sends:
    """The open sends of one lane."""

    def __init__(self) -> None:
        self.all_ended = asyncio.Event()
        """Set when the last one that was open has ended."""
        self._open: dict[tuple[Outbound, int], deque[asyncio.Future[Receipt]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def send(self, outbound: Outbound, partition: int, share: Share, ended: Ended) -> None:
        """Send, and tell `ended` of the receipt. What the outbound raises is raised, and nothing is sent then."""
        future = outbound.send(partition, share)
        share.let_go()
        sent = self._open.get((outbound, partition))
        if sent is None:
            sent = self._open[outbound, partition] = deque()
        sent.append(future)
        if not self._count:
            self.all_ended.clear()
        self._count += 1
        future.add_done_callback(partial(self._ended, sent, ended))

    def would_overtake(self, outbound: Outbound, partition: int) -> bool:
        """Whether something failed there already, of which the lane hears only in the next turn of the loop."""
        sent = self._open.get((outbound, partition))
        return sent is not None and any(map(_has_failed, takewhile(asyncio.Future.done, sent)))

    def withdraw(self) -> None:
        """Take back what is not on its way."""
        by_outbound: dict[Outbound, list[asyncio.Future[Receipt]]] = {}
        for (outbound, _), sent in self._open.items():
            by_outbound.setdefault(outbound, []).extend(sent)
        for outbound, futures in by_outbound.items():
            if futures:
                outbound.withdraw(futures)

    def _ended(self, sent: "deque[asyncio.Future[Receipt]]", ended: Ended, future: "asyncio.Future[Receipt]") -> None:
        sent.remove(future)
        self._count -= 1
        ended(future)
        if not self._count:
            self.all_ended.set()


def _has_failed(future: "asyncio.Future[Receipt]") -> bool:
    """Whether an answer that is there says that something is to be sent again, before all that follows."""
    if future.cancelled() or future.exception() is not None:
        return True
    return any(failure.kind is not Failure.REFUSED for failure in future.result().failures)
