"""The sends of a lane that have no receipt yet, in order per target partition.

They include dead letters: the lane waits for those and withdraws them like other sends.
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
    """The sends in flight of one lane."""

    def __init__(self) -> None:
        self.all_ended = asyncio.Event()
        """Set when the last send in flight has ended, cleared by the next send."""
        self._open: dict[tuple[Outbound, int], deque[asyncio.Future[Receipt]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def send(self, outbound: Outbound, partition: int, share: Share, ended: Ended) -> None:
        """Send a share; `ended` is called with the finished future of its receipt. If the outbound raises, nothing is sent."""
        future = outbound.send(partition, share)
        share.release_messages()
        sent = self._open.get((outbound, partition))
        if sent is None:
            sent = self._open[outbound, partition] = deque()
        sent.append(future)
        if not self._count:
            self.all_ended.clear()
        self._count += 1
        future.add_done_callback(partial(self._ended, sent, ended))

    def would_overtake(self, outbound: Outbound, partition: int) -> bool:
        """Return True if a send to this partition has failed, even if its callback has not run yet."""
        sent = self._open.get((outbound, partition))
        return sent is not None and any(map(_has_failed, takewhile(asyncio.Future.done, sent)))

    def withdraw(self) -> None:
        """Withdraw every send that is not on the wire."""
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
    """Return True if a finished send has failed, so that later sends to its partition would overtake it."""
    if future.cancelled() or future.exception() is not None:
        return True
    return any(failure.failure_kind is not Failure.REFUSED for failure in future.result().failures)
