"""The sends to one partition that wait, and how they fail. The send queue of every system has one `WaitingSends`.

A send waits until its queue writes it, is then in flight, and ends: it is stored, fails or is withdrawn. The queues know their
sends in flight themselves, because the systems differ in how many there may be, and in what happens to them when a connection is
lost.

The state has two independent axes. Each has a table of its transitions, and a method for each event. No IO happens here.

    link    SENDING <-> PAUSED;  -> CLOSED
            PAUSED: nothing is written, because there is no connection yet, or no longer
    intake  ACCEPTING -> REJECTING -> ACCEPTING -> ...;  -> CLOSED
            REJECTING: a send has failed of which its caller does not know yet, so new sends of the same stream fail. Only
            `in_order`

Failing in order: if a send fails for good, those behind it fail too, because they would be stored before the caller sends the
failed one again. For the same reason no new send of its stream is accepted before the caller knows of the failure. The caller
learns of it by futures, see `Caller`. They may be completed long after the send has failed: every layer between the queue and
these futures may pass the failure on in another iteration of the event loop. So new sends of the stream fail until each of these
futures has called its callbacks, however many layers there are.

A send that fails for this reason is a failure itself, so sends that come before its caller knows of it fail in a next round. A
caller that waits for the results of its sends after a failure ends the rounds. Independent callers of one stream that send all
the time, such as the requests to a busy server, never would: after MAX_ROUNDS, their sends are accepted.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mqbridge.errors import LocalProtocolError, MqbridgeError


class State(Enum):
    """The states of both axes: link and intake. CLOSED is the last state of both."""

    SENDING = "sending"
    PAUSED = "paused"

    ACCEPTING = "accepting"
    REJECTING = "rejecting"

    CLOSED = "closed"


class Event(Enum):
    """The events of both axes."""

    PAUSE = "pause"
    RESUME = "resume"

    FAIL = "fail in order"
    TOLD = "be told"

    CLOSE = "close"


S, E = State, Event
SENDING = S.SENDING
"""A constant, because queues compare with it for every send."""

MAX_ROUNDS = 10
"""Maximum rounds of sends that are rejected only because callers do not know that earlier ones were rejected."""

# The tables: (state, event) -> next state. An event that a table does not list for a state is a bug.

LINK = {
    (S.SENDING, E.PAUSE): S.PAUSED,
    (S.SENDING, E.CLOSE): S.CLOSED,
    (S.PAUSED, E.PAUSE): S.PAUSED,
    (S.PAUSED, E.RESUME): S.SENDING,
    (S.PAUSED, E.CLOSE): S.CLOSED,
    (S.CLOSED, E.PAUSE): S.CLOSED,
    (S.CLOSED, E.RESUME): S.CLOSED,  # a recovery ends after the queue was closed
    (S.CLOSED, E.CLOSE): S.CLOSED,
}

INTAKE = {
    (S.ACCEPTING, E.FAIL): S.REJECTING,
    (S.ACCEPTING, E.CLOSE): S.CLOSED,
    (S.REJECTING, E.FAIL): S.REJECTING,
    (S.REJECTING, E.TOLD): S.ACCEPTING,
    (S.REJECTING, E.CLOSE): S.CLOSED,
    (S.CLOSED, E.FAIL): S.CLOSED,  # a send that was in flight when the queue was closed
    (S.CLOSED, E.CLOSE): S.CLOSED,
}


def _next(table: dict[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[state, event]
    except KeyError:
        raise LocalProtocolError(f"invalid transition of a send queue: {event.name} in state {state.name}") from None


class Caller:
    """Who waits for the result of a send: the same object for all sends that one call has made.

    By `owner`, any object, the caller can withdraw its sends. The sends of one `stream`, a hashable value, keep their order. The
    caller learns of the result by the futures `told_by`; without any, it knows when `Send.fail` returns.
    """

    __slots__ = ("owner", "stream", "told_by")

    def __init__(self, owner: object, stream: object, told_by: "Sequence[asyncio.Future[Any]]") -> None:
        self.owner, self.stream, self.told_by = owner, stream, told_by


class Send(Protocol):
    """A send that waits or is in flight."""

    caller: Caller
    withdrawn: bool
    """True if the caller has withdrawn the send in flight: it must not be sent again."""

    def fail(self, error: MqbridgeError) -> None:
        """Report the failure, unless the send has ended already."""


T = TypeVar("T", bound=Send)


class _Rejection:
    """The rejection of one stream, in rounds: new sends of the stream fail until its callers know of the failures of a round.

    `untold` is what has to happen before they know: futures call their callbacks, or the next iteration of the event loop begins
    (an object without properties). `untold_next` is the same for the sends that were rejected in this round.
    """

    __slots__ = ("round", "untold", "untold_next")

    def __init__(self) -> None:
        self.round = 0
        self.untold: set[object] = set()
        self.untold_next: set[object] = set()

    def on_told(self, told: object) -> bool:
        """Record that this has happened; return True if it was the last thing, so that sends are accepted again."""
        self.untold.discard(told)
        self.untold_next.discard(told)
        if not self.untold and self.round < MAX_ROUNDS:
            self.untold, self.untold_next = self.untold_next, self.untold
            self.round += 1
        return not self.untold


class WaitingSends(Generic[T]):
    """The sends to one partition that wait, oldest first. Created inside a running loop.

    `in_order`: a send that fails for good also fails all later ones, and those of its stream that are added before its caller
    knows of it.
    """

    def __init__(self, *, in_order: bool, link: State = S.SENDING) -> None:
        self.waiting: deque[T] = deque()
        """Always the same object, so that the queue can keep a reference."""
        self.in_order = in_order
        self.link, self.intake = link, S.ACCEPTING
        self.rejection: MqbridgeError | None = None
        """The error of new sends that are not accepted (see `rejects`); None while all are accepted."""
        self._rejections: dict[object, _Rejection] = {}
        """By stream."""
        self._loop = asyncio.get_running_loop()

    # --- link -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop writing, because the connection is lost or may be of no use."""
        self.link = _next(LINK, self.link, E.PAUSE)

    def resume(self) -> None:
        """Write again."""
        self.link = _next(LINK, self.link, E.RESUME)

    def put_back(self, sends: Sequence[T]) -> None:
        """Let sends that were in flight wait again, in this order, before all others."""
        self.waiting.extendleft(reversed(sends))

    # --- failing ----------------------------------------------------------------------------------------------------

    def fail(self, failed: Sequence[T], error: MqbridgeError, error_behind: MqbridgeError | None = None) -> None:
        """Fail sends that wait no more, and behind them all that wait, the latter with `error_behind` (None: with `error`).

        If `in_order`, new sends of their streams then fail like those behind, until their callers know of it.
        """
        behind = self._take_all()
        sends = [*failed, *behind]
        if self.in_order and sends:
            self._begin_to_reject(sends, error_behind or error)
        for send in failed:
            send.fail(error)
        for send in behind:
            send.fail(error_behind or error)
        if self.in_order and self.intake is S.REJECTING:
            for send in sends:
                self._await_told(send.caller, self._rejections[send.caller.stream].untold)

    def _begin_to_reject(self, sends: Iterable[T], error: MqbridgeError) -> None:
        """Reject the streams of these sends, which fail next, until the next iteration of the event loop begins.

        If `Send.fail` completes the futures of a caller itself, the iteration calls their callbacks after it has called
        `_on_told`. So a caller that is told may send at once, but nobody can before.
        """
        self.intake = _next(INTAKE, self.intake, E.FAIL)
        if self.intake is S.REJECTING:
            self.rejection = error
            for stream in {send.caller.stream for send in sends}:
                rejection = self._rejections.setdefault(stream, _Rejection())
                rejection.round = 0
                self._await_next_iteration(stream, rejection.untold)

    def _await_next_iteration(self, stream: object, untold: set[object]) -> None:
        next_iteration = object()
        untold.add(next_iteration)
        self._loop.call_soon(self._on_told, stream, next_iteration)

    def _await_told(self, caller: Caller, untold: set[object]) -> None:
        for future in caller.told_by:
            if not future.done() and future not in untold:
                untold.add(future)
                future.add_done_callback(partial(self._on_told, caller.stream))  # called after the caller's own callbacks

    def _on_told(self, stream: object, told: object) -> None:
        rejection = self._rejections.get(stream)
        if rejection is not None and rejection.on_told(told):  # None: it ended after MAX_ROUNDS
            del self._rejections[stream]
            if not self._rejections and self.intake is S.REJECTING:
                self.intake = _next(INTAKE, self.intake, E.TOLD)
                self.rejection = None

    def rejects(self, send: T) -> bool:
        """Return False if a new send is accepted; else let it fail with `rejection`, and return True.

        A send that is rejected fails in the next iteration of the event loop: a caller that sends again and again at once would
        otherwise never let the loop tell it of the first failure.
        """
        error = self.rejection
        if error is None:
            return False
        if self.intake is S.CLOSED:
            send.fail(error)
            return True
        rejection = self._rejections.get(send.caller.stream)
        if rejection is None:
            return False
        self._loop.call_soon(send.fail, error)
        self._await_next_iteration(send.caller.stream, rejection.untold_next)
        self._await_told(send.caller, rejection.untold_next)
        return True

    def withdraw(self, owners: Collection[object], in_flight: Iterable[T], error: MqbridgeError) -> None:
        """Fail the waiting sends of these owners with `error`, and mark those `in_flight`. Other sends keep their order."""
        for send in in_flight:
            if send.caller.owner in owners:
                send.withdrawn = True
        withdrawn = [send for send in self.waiting if send.caller.owner in owners]
        if withdrawn:
            kept = [send for send in self.waiting if send.caller.owner not in owners]
            self.waiting.clear()
            self.waiting.extend(kept)
            for send in withdrawn:
                send.fail(error)

    def close(self, error: MqbridgeError) -> None:
        """Fail every waiting and every later send with this error."""
        self.link, self.intake = _next(LINK, self.link, E.CLOSE), _next(INTAKE, self.intake, E.CLOSE)
        self.rejection = error
        for send in self._take_all():
            send.fail(error)

    def _take_all(self) -> list[T]:
        sends = list(self.waiting)
        self.waiting.clear()
        return sends
