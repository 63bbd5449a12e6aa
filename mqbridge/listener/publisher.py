"""A publisher: one producer of a client, and what it sends to one topic, in the order of its calls.

Every publication is answered once, by its callback. With `in_order`, the callbacks are called in the order of the calls, as
protocols demand whose answers carry no number of their request. A batch is stored whole or not at all; one that the backing never
accepts is stored in the dead-letter topic instead, and counts as stored: an SDK that got an error would send it again for ever.

    OPEN     publications are sent
    BROKEN   the outbound cannot be used any more: publications fail, and the client has to make its producer again
    CLOSED   no more publications; those that are in flight are answered, or were given up

        publish        OPEN                 (in BROKEN and CLOSED it fails)
        (FATAL send)   OPEN -> BROKEN
        close, abandon OPEN, BROKEN -> CLOSED
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.limits import InFlightBytes
from mqbridge.message import Batch, Position, Share
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)


class Stored:
    """The answer to a publication.

    positions     one position per message; () where it is not known, and for dead letters
    problem       why it was not stored; None if it was
    is_duplicate  True if it had been stored before
    dead_letters  number of its messages that are in the dead-letter topic instead
    """

    __slots__ = ("dead_letters", "is_duplicate", "positions", "problem")

    def __init__(
        self,
        positions: Sequence[Position] = (),
        problem: ClusterError | None = None,
        *,
        is_duplicate: bool = False,
        dead_letters: int = 0,
    ) -> None:
        self.positions, self.problem = positions, problem
        self.is_duplicate, self.dead_letters = is_duplicate, dead_letters

    @property
    def first(self) -> Position:
        """Position of the first message; () if it is not known."""
        return self.positions[0] if self.positions else ()


Done = Callable[[Stored], None]


class Publication:
    """A batch that is being stored."""

    __slots__ = ("_done", "batch", "partition", "send", "size", "stored")

    def __init__(self, partition: int, batch: Batch, size: int, done: Done) -> None:
        self.partition, self.batch, self.size = partition, batch, size
        self.send: asyncio.Future[Receipt] | None = None
        """The outbound's future; None if nothing was sent."""
        self.stored: Stored | None = None
        """The answer, once it is known."""
        self._done = done

    def answer(self) -> None:
        """Call the callback."""
        assert self.stored is not None  # noqa: S101 - a bug of the publisher
        self._done(self.stored)


class State(Enum):
    """The state of a publisher, see the module."""

    OPEN = "open"
    BROKEN = "broken"
    CLOSED = "closed"


class Publisher:
    """See the module. Several publishers may share an outbound, which somebody else opens and closes."""

    def __init__(
        self,
        topic: str,
        outbound: Outbound,
        in_flight: InFlightBytes,
        open_dead_letters: Callable[[], Awaitable[DeadLetters]],
        *,
        in_order: bool,
        last_sequence: int | None = None,
    ) -> None:
        """`topic` names the topic in dead letters and errors: `cluster/topic`.

        `last_sequence` is the number of the last message that the producer has stored, if it numbers its messages (see
        `OutboundSpec.sender`): publications at or below it are not stored again.
        """
        self.state = State.OPEN
        self.dead_letters = 0
        """Total number of messages that were stored as dead letters."""
        self.last_sequence = last_sequence
        self._topic, self._outbound, self._in_flight = topic, outbound, in_flight
        self._open_dead_letters, self._in_order = open_dead_letters, in_order
        self._pending: deque[Publication] = deque()
        """Publications that are not answered, in the order of their calls."""
        self._burials: set[asyncio.Task[None]] = set()
        """Tasks that store dead letters."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def publish(self, partition: int, batch: Batch, done: Done) -> Publication:
        """Store a batch, without waiting; `done` gets the answer, never before this returns.

        With `last_sequence`, the position of message k of the batch is (sequence + k,).
        """
        publication = Publication(partition, batch, batch.held_bytes, done)
        self._pending.append(publication)
        self._all_answered.clear()
        self._in_flight.add(publication.size)
        if self.state is not State.OPEN:
            self._resolve_soon(publication, Stored(problem=ClusterError(f"the producer of {self._topic} is {self.state.value}")))
        elif self.last_sequence is not None and batch.first <= (self.last_sequence,):
            self._resolve_soon(publication, Stored(is_duplicate=True))
        else:
            if self.last_sequence is not None:
                self.last_sequence = batch.first[0] + batch.count - 1
            send = publication.send = self._outbound.send(partition, Share(batch))
            send.add_done_callback(lambda send: self._on_receipt(publication, send))
        return publication

    def withdraw(self, publication: Publication) -> None:
        """Do not store the publication unless it is on the wire already; its callback gets what happened."""
        if publication.send is not None:
            self._outbound.withdraw([publication.send])

    def abandon(self) -> None:
        """Withdraw what is not on the wire: the client is gone, and gets no answers."""
        self.state = State.CLOSED
        self._outbound.withdraw([each.send for each in self._pending if each.send is not None])

    async def close(self, deadline: float | None = None) -> None:
        """Accept no more publications, and wait for the answers to those in flight; what is not answered by then is given up."""
        self.state = State.CLOSED
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await self._all_answered.wait()
        except TimeoutError:
            log.warning("a producer of %s is closed before %d of its batches were stored", self._topic, len(self._pending))
            await cancel(*self._burials)

    def _resolve_soon(self, publication: Publication, stored: Stored) -> None:
        asyncio.get_running_loop().call_soon(self._resolve, publication, stored)

    def _on_receipt(self, publication: Publication, send: "asyncio.Future[Receipt]") -> None:
        """Take the receipt of a send; bury messages that the backing never accepts."""
        if send.cancelled():
            self._resolve(publication, Stored(problem=ClusterError(f"sending to {self._topic} was cancelled")))
            return
        error = send.exception()
        if error is not None:
            self._break(error)
            problem = error if isinstance(error, ClusterError) else ClusterError(str(error), Failure.FATAL)
            self._resolve(publication, Stored(problem=problem))
            return
        receipt = send.result()
        refused = [failure for failure in receipt.failures if failure.failure_kind is Failure.REFUSED]
        if len(refused) < len(receipt.failures):
            other = next(failure for failure in receipt.failures if failure.failure_kind is not Failure.REFUSED)
            self._resolve(publication, Stored(problem=ClusterError(other.reason, other.failure_kind)))
        elif refused:
            task = spawn(self._bury(publication, receipt, refused), f"dead letters of {self._topic}")
            self._burials.add(task)
            task.add_done_callback(self._burials.discard)
        else:
            self._resolve(publication, Stored(receipt.positions))

    def _break(self, error: BaseException) -> None:
        if self.state is State.OPEN:
            self.state = State.BROKEN
            log.warning("the producers of %s have to be made again: %s", self._topic, error)

    async def _bury(self, publication: Publication, receipt: Receipt, refused: list[MessageFailure]) -> None:
        """Store the refused messages of a publication in the dead-letter topic."""
        stored = Stored(problem=ClusterError(refused[0].reason, Failure.REFUSED))
        try:
            letters = await self._open_dead_letters()
            batch = publication.batch
            share = letters.make(self._topic, batch.messages, refused, batch.partition)
            buried = await letters.outbound.send(letters.partition_of(batch.partition), share)
            if buried.failures:
                reason = buried.failures[0].reason
                stored = Stored(
                    problem=ClusterError(f"{refused[0].reason}; its dead letter was not stored: {reason}", Failure.REFUSED)
                )
            else:
                self.dead_letters += len(refused)
                log.warning(
                    "%d messages for %s are dead letters in %s: %s", len(refused), self._topic, letters.label, refused[0].reason
                )
                stored = Stored(receipt.positions, dead_letters=len(refused))
        except ClusterError as error:
            stored = Stored(problem=ClusterError(f"{refused[0].reason}; its dead letter was not stored: {error}", error.failure))
        finally:
            self._resolve(publication, stored)

    def _resolve(self, publication: Publication, stored: Stored) -> None:
        """Answer the publication, after those before it if the answers are in order."""
        publication.stored = stored
        if not self._in_order:
            self._pending.remove(publication)
            self._answer(publication)
        else:
            while self._pending and self._pending[0].stored is not None:
                self._answer(self._pending.popleft())
        if not self._pending:
            self._all_answered.set()

    def _answer(self, publication: Publication) -> None:
        self._in_flight.release(publication.size)
        publication.answer()
