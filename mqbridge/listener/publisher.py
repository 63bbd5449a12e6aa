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
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.delivery.deadletter import DeadLetters, as_cluster_error
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.limits import InFlightBytes
from mqbridge.message import Batch, Position, Share
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

STORE_TIMEOUT_S = 30.0
"""Maximum time for storing a dead letter."""


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

    __slots__ = ("batch", "deliver_at", "done", "last", "partition", "send", "size", "stored")

    def __init__(self, partition: int, batch: Batch, done: Done, last: int, deliver_at: int | None = None) -> None:
        """`last` is the producer's number of its last message, -1 if it has none; `deliver_at`: see `Share`."""
        self.partition, self.batch, self.done, self.last = partition, batch, done, last
        self.deliver_at = deliver_at
        self.size = batch.held_bytes
        self.send: asyncio.Future[Receipt] | None = None
        """The outbound's future; None if nothing was sent."""
        self.stored: Stored | None = None
        """The answer, once it is known."""


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

        `last_sequence` is the number of the last message that the producer has stored, -1 if none; None if it does not number its
        messages (see `OutboundSpec.sender`). Messages at or below it are not stored again.
        """
        self.state = State.OPEN
        self.is_broken = False
        """True if the outbound cannot be used any more, also once this publisher is closed."""
        self.dead_letters = 0
        """Total number of messages that were stored as dead letters."""
        self.last_sequence = last_sequence
        """Number of the last message that is stored; None if the producer does not number its messages."""
        self._last_sent = -1 if last_sequence is None else last_sequence
        """Number of the last message that was sent."""
        self._topic, self._outbound, self._in_flight = topic, outbound, in_flight
        self._open_dead_letters, self._in_order = open_dead_letters, in_order
        self._pending: dict[Publication, None] = {}
        """Publications that are not answered, in the order of their calls."""
        self._dead_letter_tasks: set[asyncio.Task[None]] = set()
        """Tasks that store dead letters."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def keeps(self, unit_format: str) -> bool:
        """Return True if units of this format are stored as they are."""
        return unit_format in self._outbound.formats

    def publish(self, partition: int, batch: Batch, done: Done, *, deliver_at: int | None = None) -> Publication:
        """Store a batch, without waiting; `done` gets the answer, never before this returns.

        With `last_sequence`, the position of message k of the batch is (sequence + k,); one without positions is not numbered.
        With `deliver_at` (ms since the epoch), all of its messages are delivered at that time, by a cluster that delays messages.
        """
        last = -1 if self.last_sequence is None or not batch.first else batch.first[0] + batch.count - 1
        publication = Publication(partition, batch, done, last, deliver_at)
        self._pending[publication] = None
        self._all_answered.clear()
        self._in_flight.add(publication.size)
        try:
            self._send(publication)
        except Exception as error:  # the client gets it, and its other batches go on
            log.exception("a batch for %s cannot be sent", self._topic)
            self._resolve_soon(publication, Stored(problem=as_cluster_error(error)))
        return publication

    def _send(self, publication: Publication) -> None:
        """Hand a publication to the outbound, unless it cannot be sent, or is stored or sent already."""
        if self.state is not State.OPEN:
            problem = ClusterError(f"the producer of {self._topic} is {self.state.value}")
            self._resolve_soon(publication, Stored(problem=problem))
        elif self.last_sequence is None or publication.last < 0:
            self._send_share(publication, Share(publication.batch, deliver_at=publication.deliver_at))
        elif publication.last <= self.last_sequence:
            self._resolve_soon(publication, Stored(is_duplicate=True))
        elif publication.batch.first[0] <= self._last_sent and self._last_sent > self.last_sequence:
            self._send_after_repeated(publication)
        else:  # of a batch that was stored in part, only the rest is sent
            stored = max(0, self.last_sequence + 1 - publication.batch.first[0])
            rest = range(stored, publication.batch.count) if stored else None
            self._last_sent = publication.last
            self._send_share(publication, Share(publication.batch, rest, deliver_at=publication.deliver_at))

    def _send_share(self, publication: Publication, share: Share) -> None:
        send = publication.send = self._outbound.send(publication.partition, share)
        send.add_done_callback(lambda send: self._on_receipt(publication, share, send))

    def _send_after_repeated(self, publication: Publication) -> None:
        """Wait for the send of which this is a repetition: if it fails, so does this one. It may be a part of several."""
        repeated = next(
            (
                each
                for each in self._pending
                if each is not publication and each.send is not None and each.last >= publication.last
            ),
            None,
        )
        if repeated is None or repeated.send is None:
            problem = ClusterError(
                f"messages for {self._topic} are repeated in other batches while they are stored; send them again"
            )
            self._resolve_soon(publication, Stored(problem=problem))
        else:
            repeated.send.add_done_callback(lambda _: self._resolve_soon(publication, self._answer_of_repeated(repeated)))

    def _answer_of_repeated(self, repeated: Publication) -> Stored:
        assert self.last_sequence is not None  # noqa: S101 - only numbered messages are repeated
        if repeated.last <= self.last_sequence:
            return Stored(is_duplicate=True)
        return Stored(problem=ClusterError(f"the batch for {self._topic} that this one repeats was not stored"))

    def withdraw(self, publication: Publication) -> None:
        """Do not store the publication unless it is on the wire already; its callback gets what happened.

        What a producer that numbers its messages has sent behind it is withdrawn, too: once that is stored, this one would count
        as stored.
        """
        withdrawn = [publication]
        if self.last_sequence is not None:
            self._break(ClusterError("a batch was withdrawn"))
            withdrawn = [each for each in self._pending if each.last >= publication.last]
        self._outbound.withdraw([each.send for each in withdrawn if each.send is not None])

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
            await cancel(*self._dead_letter_tasks)

    def _resolve_soon(self, publication: Publication, stored: Stored) -> None:
        asyncio.get_running_loop().call_soon(self._resolve, publication, stored)

    def _on_receipt(self, publication: Publication, share: Share, send: "asyncio.Future[Receipt]") -> None:
        """Take the receipt of a send; messages that the backing never accepts become dead letters."""
        if send.cancelled():
            self._fail(publication, ClusterError(f"sending to {self._topic} was cancelled"))
        elif (error := send.exception()) is not None:
            self._break(error)
            self._fail(publication, as_cluster_error(error))
        else:
            receipt = send.result()
            refused = [failure for failure in receipt.failures if failure.failure_kind is Failure.REFUSED]
            if len(refused) < len(receipt.failures):
                other = next(failure for failure in receipt.failures if failure.failure_kind is not Failure.REFUSED)
                self._fail(publication, ClusterError(other.reason, other.failure_kind))
            elif refused:
                task = spawn(self._store_dead_letters(publication, share, receipt, refused), f"dead letters of {self._topic}")
                self._dead_letter_tasks.add(task)
                task.add_done_callback(self._dead_letter_tasks.discard)
            else:
                self._succeed(publication, Stored(receipt.positions))

    def _break(self, error: BaseException) -> None:
        self.is_broken = True
        if self.state is State.OPEN:
            self.state = State.BROKEN
            log.warning("the producers of %s have to be made again: %s", self._topic, error)

    def _fail(self, publication: Publication, problem: ClusterError) -> None:
        """Answer that it was not stored. What a producer that numbers its messages has stored is known when it is made again."""
        if self.last_sequence is not None:
            self._break(problem)
        self._resolve(publication, Stored(problem=problem))

    def _succeed(self, publication: Publication, stored: Stored) -> None:
        if self.last_sequence is not None:
            self.last_sequence = max(self.last_sequence, publication.last)
        self._resolve(publication, stored)

    async def _store_dead_letters(
        self, publication: Publication, share: Share, receipt: Receipt, refused: Sequence[MessageFailure]
    ) -> None:
        """Store the refused messages of a publication in the dead-letter topic."""
        reason, source, failure = refused[0].reason, publication.batch.partition, Failure.REFUSED
        letters: DeadLetters | None = None
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                letters = await self._open_dead_letters()
                letter_share = letters.make(self._topic, share.originals, refused, source)
                letters_receipt = await letters.send(letters.partition_of(source), letter_share)
            problem = letters_receipt.failures[0].reason if letters_receipt.failures else None
        except TimeoutError:
            # The answers to all later sends wait for this one, and so do the bytes of all of them.
            problem, failure = f"nothing was stored within {STORE_TIMEOUT_S:g} s", Failure.RETRY
        except ClusterError as error:
            problem = str(error)
        except BaseException:
            self._fail(publication, ClusterError(f"{reason}; its dead letter was not stored", Failure.REFUSED))
            raise
        if problem is not None:
            log.error(
                "%d messages for %s are stored nowhere: %s; as dead letters: %s", len(refused), self._topic, reason, problem
            )
            self._fail(publication, ClusterError(f"{reason}; its dead letter was not stored: {problem}", failure))
        elif letters is not None:
            self.dead_letters += len(refused)
            log.warning("%d messages for %s are dead letters in %s: %s", len(refused), self._topic, letters.label, reason)
            self._succeed(publication, Stored(receipt.positions, dead_letters=len(refused)))

    def _resolve(self, publication: Publication, stored: Stored) -> None:
        """Answer the publication, after those before it if the answers are in order."""
        publication.stored = stored
        if not self._in_order:
            self._answer(publication)
        else:
            while self._pending and (oldest := next(iter(self._pending))).stored is not None:
                self._answer(oldest)
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._all_answered.set)  # after the callbacks

    def _answer(self, publication: Publication) -> None:
        """Call the callback by itself: an error in one does not keep the others from being called."""
        assert publication.stored is not None  # noqa: S101 - a bug of `_resolve`
        del self._pending[publication]
        self._in_flight.release(publication.size)
        asyncio.get_running_loop().call_soon(publication.done, publication.stored)
