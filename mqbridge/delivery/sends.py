"""The sends of a lane (one source partition) that have no receipt yet, in order per target partition.

Each sends a share: the messages of a batch for one target partition. Dead letters are included, because the lane awaits and
withdraws them like all other sends.
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

OnEnded = Callable[["asyncio.Future[Receipt]"], None]
"""Callback for the end of a send, with the finished future of its receipt."""


class Sends:
    """The sends in flight of one lane."""

    def __init__(self) -> None:
        self.all_ended = asyncio.Event()
        """Set when the last send in flight has ended, cleared by the next send. Not set before the first: check `len`."""
        self._in_flight: dict[tuple[Outbound, int], deque[asyncio.Future[Receipt]]] = {}
        """By outbound and target partition, the futures of the receipts of its sends, oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def send(self, outbound: Outbound, partition: int, share: Share, on_ended: OnEnded) -> None:
        """Send a share; `on_ended` is called when the send has ended. If the outbound raises, nothing is sent."""
        future = outbound.send(partition, share)
        share.release_messages()  # the outbound has encoded them
        futures = self._in_flight.get((outbound, partition))
        if futures is None:
            futures = self._in_flight[outbound, partition] = deque()
        futures.append(future)
        if not self._count:
            self.all_ended.clear()
        self._count += 1
        future.add_done_callback(partial(self._remove_ended, futures, on_ended))

    def would_overtake(self, outbound: Outbound, partition: int) -> bool:
        """Return True if a new send to this partition would overtake messages of a failed one, which will be delivered again.

        Includes a send that has just failed: its callback, which stops the lane, runs only in the next loop iteration.
        """
        futures = self._in_flight.get((outbound, partition))
        # An ordered outbound sets receipts in order, or rejects sends until all failures are known: the first ended ones suffice.
        # With other outbounds, sends may overtake.
        return futures is not None and any(map(_has_failed, takewhile(asyncio.Future.done, futures)))

    def withdraw(self) -> None:
        """Cancel every send that is not on the wire: its receipt then reports its messages as failures to retry."""
        by_outbound: dict[Outbound, list[asyncio.Future[Receipt]]] = {}
        for (outbound, _), futures in self._in_flight.items():
            by_outbound.setdefault(outbound, []).extend(futures)
        for outbound, sends in by_outbound.items():
            if sends:
                outbound.withdraw(sends)

    def _remove_ended(
        self, futures: "deque[asyncio.Future[Receipt]]", on_ended: OnEnded, future: "asyncio.Future[Receipt]"
    ) -> None:
        """Remove a send that has ended from those in flight, and call its `on_ended`."""
        futures.remove(future)
        self._count -= 1
        on_ended(future)
        if not self._count:
            self.all_ended.set()


def _has_failed(future: "asyncio.Future[Receipt]") -> bool:
    """Return True if a finished send has failed; refused messages are no failure here, because they are not sent again."""
    if future.cancelled() or future.exception() is not None:
        return True
    return any(failure.failure_kind is not Failure.REFUSED for failure in future.result().failures)
