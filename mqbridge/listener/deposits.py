"""Messages that clients send with a delay: each is deposited in a level of the parking, and goes to its own topic when it is due.

QUEUED     the server has called `add`
STORING    it is being stored in its level, together with all that were queued in the same iteration of the event loop
ANSWERED   `done` was called: it is stored in its level, or it is not

    (next iteration)     QUEUED -> STORING; QUEUED -> ANSWERED with an error if the parking is closed
    (receipt, failure)   STORING -> ANSWERED
    close                STORING -> ANSWERED with an error; the message may be stored nevertheless
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from mqbridge.adapter.topics import Topic
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.limits import InFlightBytes
from mqbridge.listener.parked import Parked
from mqbridge.message import Unit
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

STORED_AT_ONCE = 500
"""Maximum number of messages that are parked, or brought back, with one request for each topic."""

Done = Callable[[ClusterError | None], None]
"""Gets None when a message is stored in its level, or why it is not."""


class TargetGone(ClusterError):
    """The topic of a message that is due does not exist any more, or has no such partition."""

    def __init__(self, problem: str, failure: Failure = Failure.REFUSED) -> None:
        super().__init__(problem, failure)


class Deposit(NamedTuple):
    """A unit that is to be stored in a level; `done` is called once."""

    parked: Parked
    unit: Unit
    done: Done


class Deposits:
    """See the module. Set `is_open` to store what is added, and call `close`."""

    def __init__(
        self,
        store: Callable[[str, Sequence[Deposit]], Coroutine[Any, Any, Sequence[ClusterError | None]]],
        in_flight: InFlightBytes,
    ) -> None:
        """`store` stores deposits in a level, and returns for each why it is not stored; None if it is. Raises MqbridgeError.

        `in_flight` counts the bytes of deposits until they are answered.
        """
        self.is_open = False
        self._store, self._in_flight = store, in_flight
        self._queue: dict[str, list[Deposit]] = {}
        """Deposits that wait for the next iteration of the event loop, by level."""
        self._tasks: set[asyncio.Task[Sequence[ClusterError | None]]] = set()

    def add(self, level: str, deposit: Deposit) -> None:
        """Store a deposit soon."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._store_queued)
        self._queue.setdefault(level, []).append(deposit)
        self._in_flight.add(len(deposit.unit.data))

    def _store_queued(self) -> None:
        queue, self._queue = self._queue, {}
        for level, deposits in queue.items():
            for begin in range(0, len(deposits), STORED_AT_ONCE):
                self._start(level, deposits[begin : begin + STORED_AT_ONCE])

    def _start(self, level: str, deposits: Sequence[Deposit]) -> None:
        if not self.is_open:
            self._answer(deposits, [_closed()] * len(deposits))
            return
        task = spawn(self._store(level, deposits), f"deposits for {level}", log_errors=False)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_stored, level, deposits))  # called also if the task never began

    def _on_stored(self, level: str, deposits: Sequence[Deposit], task: "asyncio.Task[Sequence[ClusterError | None]]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            problems: Sequence[ClusterError | None] = [_closed()] * len(deposits)
        elif (error := task.exception()) is not None:
            log.warning("%d messages cannot wait in level %s now: %s", len(deposits), level, error or "no answer")
            problem = error if isinstance(error, ClusterError) else ClusterError(str(error) or f"level {level} did not answer")
            problems = [problem] * len(deposits)
        else:
            problems = task.result()
        self._answer(deposits, problems)

    def _answer(self, deposits: Sequence[Deposit], problems: Sequence[ClusterError | None]) -> None:
        """Call each callback by itself: an error in one does not keep the others from being called."""
        self._in_flight.release(sum(len(deposit.unit.data) for deposit in deposits))
        for deposit, problem in zip(deposits, problems, strict=True):
            asyncio.get_running_loop().call_soon(deposit.done, problem)

    async def close(self) -> None:
        """Store nothing more; what is not stored by now is answered with an error, also what is added later."""
        self.is_open = False
        await cancel(*self._tasks)


def _closed() -> ClusterError:
    return ClusterError("the listener is being closed")


def check_target(name: str, partition: int, topic: Topic | None) -> None:
    """Check that a topic has a partition, by its index. Raises TargetGone, or ClusterError if it may be away for a while."""
    if topic is None:
        raise TargetGone(f"topic {name} does not exist any more")
    indexes = set(topic.index_by_partition.values())
    if not indexes:
        raise ClusterError(topic.unreadable or f"topic {name} has no partitions now")
    if partition > max(indexes):
        raise TargetGone(f"topic {name} has no partition {partition} any more")
    if partition not in indexes:
        raise ClusterError(f"partition {partition} of topic {name} is away")
