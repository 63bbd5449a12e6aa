"""The waiting sends of a queue against a model of its broker: no message of a caller is stored before an earlier one."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import ClusterError, Failure, LocalProtocolError, MqbridgeError
from mqbridge.net.waiting_sends import INTAKE, LINK, Caller, Event, State, WaitingSends
from tests.example_counts import examples
from tests.kit.callers import OrderedCaller, check_order
from tests.kit.chained_futures import chained

LAYERS = st.integers(0, 4)
ENOUGH = 40
"""Loop iterations after which every caller knows all results."""


class Body:
    """A send of one body."""

    def __init__(self, body: bytes, caller: Caller) -> None:
        self.body, self.caller = body, caller
        self.withdrawn = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: MqbridgeError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Queue:
    """The simplest queue in order: one send in flight, to a broker that stores, refuses, loses and disconnects."""

    def __init__(self) -> None:
        self.sends: WaitingSends[Body] = WaitingSends(in_order=True)
        self.in_flight: list[Body] = []
        self.stored: list[bytes] = []
        self.refused: set[bytes] = set()

    def submit(self, body: bytes, caller: Caller) -> "asyncio.Future[None]":
        send = Body(body, caller)
        if not self.sends.rejects(send):
            self.sends.waiting.append(send)
            self.pump()
        return send.future

    def pump(self) -> None:
        while self.sends.waiting and not self.in_flight and self.sends.link is State.SENDING:
            self.in_flight.append(self.sends.waiting.popleft())

    def answer(self, *, stored: bool, error: ClusterError | None) -> None:
        """The broker has stored the send in flight or not, and the response is an error, or says that it is stored."""
        send = self.in_flight.pop()
        if stored:
            self.stored.append(send.body)
        if error is None:
            send.future.set_result(None)
        elif send.withdrawn or error.failure is Failure.REFUSED:
            if error.failure is Failure.REFUSED:
                self.refused.add(send.body)
            send.fail(error)
        else:
            self.sends.fail([send], error)
        self.pump()

    def disconnect(self, *, stored: bool) -> None:
        """The connection is lost, perhaps after the broker has stored the send in flight."""
        self.sends.pause()
        in_flight, self.in_flight = self.in_flight, []
        if stored:
            self.stored += [send.body for send in in_flight]
        self.sends.put_back([send for send in in_flight if not send.withdrawn])
        for send in in_flight:
            if send.withdrawn:
                send.fail(ClusterError("withdrawn"))


class SharedQueue(RuleBasedStateMachine):
    """Three callers, each of which needs its own order, send through one queue. The event loop runs one iteration at a time."""

    @initialize()
    def make(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.callers = [OrderedCaller(name) for name in "abc"]
        self.queue: Queue = self.do(Queue)
        self.withdrawn: set[Any] = set()
        """The owners of withdrawn sends."""

    def do(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Call this in one iteration of the loop, so that as little as possible else runs."""
        result: list[Any] = []
        self.loop.call_soon(lambda: result.append(call(*arguments, **options)))
        self.iterate()
        return result.pop()

    def iterate(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    @rule(count=st.integers(1, 3))
    def time_passes(self, count: int) -> None:
        for _ in range(count):
            self.iterate()

    # --- callers ----------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 2), count=st.integers(1, 3), layers=LAYERS)
    def send(self, index: int, count: int, layers: int) -> None:
        def send() -> None:
            for _ in range(0 if self.callers[index].withdrawn else count):
                self.callers[index].send(self.queue.submit, layers)

        self.do(send)

    @rule(index=st.integers(0, 2))
    def withdraw(self, index: int) -> None:
        owners = frozenset(self.callers[index].owners())
        self.withdrawn |= owners
        self.do(self.queue.sends.withdraw, owners, self.queue.in_flight, ClusterError("withdrawn"))

    # --- the broker -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.queue.in_flight)
    @rule()
    def stores(self) -> None:
        self.do(self.queue.answer, stored=True, error=None)

    @precondition(lambda self: self.queue.in_flight)
    @rule(failure=st.sampled_from(Failure), stored=st.booleans())
    def fails(self, failure: Failure, stored: bool) -> None:
        """Fail the send for good; the broker may have stored it, but it never refuses what it has stored."""
        is_stored = stored and failure is not Failure.REFUSED
        self.do(self.queue.answer, stored=is_stored, error=ClusterError("failed", failure))

    @precondition(lambda self: self.queue.sends.link is State.PAUSED)
    @rule()
    def gives_up(self) -> None:
        self.do(self.queue.sends.fail, [], ClusterError("unreachable for too long"))

    @rule(stored=st.booleans())
    def disconnects(self, stored: bool) -> None:
        self.do(self.queue.disconnect, stored=stored)

    @precondition(lambda self: self.queue.sends.link is State.PAUSED)
    @rule()
    def comes_back(self) -> None:
        self.do(self.queue.sends.resume)
        self.do(self.queue.pump)

    # --- always, and in the end -------------------------------------------------------------------------------------

    @invariant()
    def order_is_kept(self) -> None:
        if hasattr(self, "queue"):
            check_order(self.queue.stored, self.queue.refused, self.callers)
            assert (self.queue.sends.rejection is None) == (self.queue.sends.intake is State.ACCEPTING)
            assert not any(send.caller.owner in self.withdrawn for send in self.queue.sends.waiting), "it is sent again"

    def teardown(self) -> None:
        """A healthy broker stores everything; afterwards the queue accepts sends, and remembers nothing."""
        if not hasattr(self, "queue"):
            return
        sends = self.queue.sends
        try:
            if sends.link is State.PAUSED:
                self.comes_back()
            for caller in self.callers:
                wanted = max([caller.next, *(number + 1 for number in caller.pending.values())])
                for _ in range(ENOUGH):
                    self.drain()
                    if caller.next >= wanted and not caller.pending:
                        break
                    self.do(caller.send, self.queue.submit, 1)
                assert set(range(wanted)) <= caller.stored | caller.refused
            self.order_is_kept()
            assert (sends.intake, sends._rejections, list(sends.waiting)) == (State.ACCEPTING, {}, [])
        finally:
            self.loop.close()

    def drain(self) -> None:
        for _ in range(ENOUGH):
            if self.queue.in_flight:
                self.stores()
            self.iterate()


TestSharedQueue = SharedQueue.TestCase
TestSharedQueue.settings = settings(max_examples=examples(300), stateful_step_count=40)


def test_every_state_is_reachable_and_only_closed_is_final() -> None:
    states = {state for state, _ in LINK} | {state for state, _ in INTAKE}
    assert states == set(State)
    for table, first in ((LINK, State.PAUSED), (INTAKE, State.ACCEPTING)):
        assert {*table.values(), first} == {state for state, _ in table}
        assert {after for (before, _), after in table.items() if before is State.CLOSED} == {State.CLOSED}


async def test_a_transition_that_is_not_in_the_table_raises() -> None:
    sends: WaitingSends[Body] = WaitingSends(in_order=True)
    with pytest.raises(LocalProtocolError, match="RESUME in state SENDING"):
        sends.resume()
    assert (State.SENDING, Event.RESUME) not in LINK


async def test_a_queue_without_order_accepts_sends_after_a_failure() -> None:
    sends: WaitingSends[Body] = WaitingSends(in_order=False)
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller = Caller(None, None, (told,))
    sends.waiting.append(Body(b"1", caller))
    sends.fail([], ClusterError("failed"))
    assert sends.rejection is None
    assert not sends.rejects(Body(b"2", caller))


async def test_only_the_streams_of_failed_sends_are_rejected() -> None:
    sends: WaitingSends[Body] = WaitingSends(in_order=True)
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sends.waiting.append(Body(b"1", Caller(None, "a", (told,))))
    sends.fail([], ClusterError("failed"))
    assert not sends.rejects(Body(b"2", Caller(None, "b", ())))
    rejected = Body(b"3", Caller(None, "a", ()))
    assert sends.rejects(rejected)
    assert not rejected.future.done(), "a caller that sends again at once lets the loop run"
    told.set_result(None)
    with pytest.raises(ClusterError, match="failed"):
        await rejected.future
    assert sends.intake is State.ACCEPTING


async def test_a_closed_queue_fails_every_send_at_once() -> None:
    sends: WaitingSends[Body] = WaitingSends(in_order=True)
    late = Body(b"2", Caller(None, None, ()))
    sends.close(ClusterError("closed", Failure.FATAL))
    sends.fail([Body(b"1", Caller(None, None, ()))], ClusterError("lost"))
    sends.pause()
    assert sends.rejects(late)
    assert "closed" in str(late.future.exception())


async def test_sends_are_rejected_until_the_callers_know_of_rejected_ones_too() -> None:
    sends: WaitingSends[Body] = WaitingSends(in_order=True)
    told: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    bodies = [Body(b"%d" % number, Caller(None, "a", (each,))) for number, each in enumerate(told)]
    sends.fail(bodies[:1], ClusterError("failed"))
    for knows_of, body in zip(told, bodies[1:], strict=False):
        assert sends.rejects(body)
        knows_of.set_result(None)
        await asyncio.gather(body.future, return_exceptions=True)
        await asyncio.sleep(0)
        assert sends.intake is State.REJECTING
    told[-1].set_result(None)
    await asyncio.sleep(0)
    assert (sends.intake, sends._rejections) == (State.ACCEPTING, {})
    assert isinstance(bodies[0].future.exception(), ClusterError)


@pytest.mark.parametrize("layers", range(5))
async def test_independent_callers_that_send_all_the_time_are_accepted_again(layers: int) -> None:
    """At any time some of them do not know yet that a send was rejected: that must not be a reason to reject others for ever."""
    queue, accepted = Queue(), 0
    queue.submit(b"0", Caller(None, None, ()))
    queue.answer(stored=False, error=ClusterError("failed"))
    for _ in range(1000):
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent = queue.submit(b"1", Caller(None, None, (told,)))
        chained(sent, layers).add_done_callback(lambda result, told=told: told.set_result(result.exception()))
        accepted += sent in [send.future for send in (*queue.in_flight, *queue.sends.waiting)]
        await asyncio.sleep(0)
    assert accepted
