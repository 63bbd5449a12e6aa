"""The send queues of a sender against a model of their Broker, in virtual time."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import ConnectionLost, MqbridgeError, RequestTimeout, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.waiting_sends import Caller, State
from mqbridge.tubemq.client.producer.partition_send_queue import PartitionSendQueue
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender, settle_future
from mqbridge.tubemq.client.producer.routes import TopicRoute
from mqbridge.tubemq.client.producer.send_result import SendResult
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.string_formats import Broker, TopicInfo
from tests.example_counts import examples
from tests.kit.callers import OrderedCaller, check_order, sending_after_failures
from tests.kit.virtual_time import VirtualTimeLoop

IN_FLIGHT = {"ordered": 1, "ordered, never given up": 1, "several in flight": 3, "unordered": 3}
STEP_S, MAX_ELAPSED_S, LONG_S = 0.01, 5.0, 60.0
"""Times that suffice for callbacks; for which failed messages are retried; and for all backoffs."""
ENOUGH = 40
"""Rounds after which a healthy Broker has stored everything."""
TEMPORARY, REFUSED, FATAL = (419, 503, 500, 403), 400, 401
"""Response codes."""


class OneBroker:
    """The Broker of a partition, its connection, and the routes to it. It holds each request until the test lets it answer."""

    def __init__(self) -> None:
        self.masters = self
        self.client_id, self.host, self.broker_auth = "p1", "192.0.2.2", AuthorizedInfo(visitAuthorizedToken=7)
        self.connectivity = Connectivity("model")
        self.address = "10.0.0.5:8123"
        self.stored: list[bytes] = []
        self.refused: set[bytes] = set()
        self.held: list[tuple[bytes, Callable[[Any], None]]] = []
        self.alive = self.is_reachable = self.is_writable = True
        self.wake: list[Callable[[], None]] = []

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return self

    async def refresh(self) -> None:
        await asyncio.sleep(0)

    async def connect(self) -> None:
        await asyncio.sleep(0)
        if not self.is_reachable:
            raise Unreachable("nobody there")
        self.alive = True

    def when_writable(self, call: Callable[[], None]) -> None:
        self.wake.append(call)

    def post(self, service: int, method: int, body: bytes, on_answer: Callable[[Any], None]) -> None:
        if not self.alive:
            raise ConnectionLost("not connected")
        self.held.append((SendMessageRequestP2B.FromString(body).data, on_answer))

    def answer(self, code: int = 200, index: int = 0) -> None:
        data, on_answer = self.held.pop(index)
        if code == 200:
            self.stored.append(data)
        elif code == REFUSED:
            self.refused.add(data)
        response = SendMessageResponseB2P(success=code == 200, errCode=code, errMsg="scripted")
        on_answer(response.SerializePartialToString())

    def lose(self, stored: int) -> None:
        """The connection ends; only a first part of the messages in flight is stored."""
        self.alive = False
        held, self.held = self.held, []
        self.stored += [data for data, _ in held[:stored]]
        for _, on_answer in held:
            on_answer(ConnectionLost("cut"))

    def become_writable(self) -> None:
        self.is_writable = True
        wake, self.wake = self.wake, []
        for call in wake:
            call()


class SendConversation(RuleBasedStateMachine):
    """Two callers send to one partition. With one request in flight, the order of each caller's messages is kept."""

    @initialize(kind=st.sampled_from(sorted(IN_FLIGHT)))
    def make(self, kind: str) -> None:
        self.loop = VirtualTimeLoop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.in_order, self.may_give_up = IN_FLIGHT[kind] == 1, "never" not in kind
        self.broker = OneBroker()
        self.callers = [OrderedCaller(name) for name in "ab"]
        route = TopicRoute("demo")
        route.update(TopicInfo("demo", ((1, 1, 1),), 1 << 20), {1: Broker(1, "10.0.0.5", 8123)})
        max_elapsed_s = MAX_ELAPSED_S if self.may_give_up else None
        ordered, cluster = kind != "unordered", self.broker

        def make_sender() -> PartitionSender:
            return PartitionSender(
                cluster,
                cluster,
                route,
                max_in_flight=IN_FLIGHT[kind],
                max_elapsed_s=max_elapsed_s,
                ordered=ordered,  # type: ignore[arg-type]
            )

        self.sender: PartitionSender = self.do(make_sender)

    def do(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call this within the running loop, and return its result."""

        async def run() -> Any:
            return call(*arguments, **options)

        return self.loop.run_until_complete(run())

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def happen(self, call: Callable[..., Any], *arguments: Any, layers: int) -> None:
        """Call this; both callers send in each of the iterations of the event loop after a failure."""
        if self.queue is None:
            self.do(call, *arguments)
            return
        with sending_after_failures(self.queue._sends, partial(self._send_all, layers)):
            self.do(call, *arguments)
            self.pass_time(STEP_S)

    @property
    def queue(self) -> PartitionSendQueue | None:
        return self.sender._queues.get("1:0")

    # --- callers ----------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 1), count=st.integers(1, 4), layers=st.integers(0, 4))
    def send(self, index: int, count: int, layers: int) -> None:
        for _ in range(0 if self.callers[index].withdrawn else count):
            self.do(self.callers[index].send, self._submit, layers)

    def _send_all(self, layers: int) -> None:
        for caller in self.callers:
            if not caller.withdrawn:
                caller.send(self._submit, layers)

    def _submit(self, body: bytes, caller: Caller) -> "asyncio.Future[SendResult]":
        result: asyncio.Future[SendResult] = self.loop.create_future()

        def done(outcome: SendResult | MqbridgeError) -> None:
            assert not result.done(), "reported twice"
            settle_future(result, outcome)

        self.sender.submit("1:0", body, 0, None, None, done=done, caller=caller)
        return result

    @rule(index=st.integers(0, 1))
    def withdraw(self, index: int) -> None:
        self.do(self.sender.withdraw, frozenset(self.callers[index].owners()))
        self.pass_time(STEP_S)

    @rule(seconds=st.sampled_from([0.1, 1.0, MAX_ELAPSED_S]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    # --- the Broker -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.broker.held)
    @rule(count=st.integers(1, 4))
    def store(self, count: int) -> None:
        for _ in range(count):
            if self.broker.held:
                self.do(self.broker.answer)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.broker.held)
    @rule(code=st.sampled_from([*TEMPORARY, REFUSED, FATAL]), index=st.integers(0, 2), layers=st.integers(0, 4))
    def refuse(self, code: int, index: int, layers: int) -> None:
        self.happen(self.broker.answer, code, min(index, len(self.broker.held) - 1), layers=layers)

    @precondition(lambda self: self.broker.held)
    @rule(is_stored=st.booleans(), layers=st.integers(0, 4))
    def no_response(self, is_stored: bool, layers: int) -> None:
        data, on_answer = self.broker.held.pop(0)
        self.broker.stored += [data] * is_stored
        self.happen(on_answer, RequestTimeout("silent"), layers=layers)

    @rule(stored=st.integers(0, 3), layers=st.integers(0, 4))
    def lose_connection(self, stored: int, layers: int) -> None:
        self.happen(self.broker.lose, stored, layers=layers)

    @rule(seconds=st.sampled_from([1.0, 2 * MAX_ELAPSED_S]), layers=st.integers(0, 4), count=st.integers(0, 3))
    def outage(self, seconds: float, layers: int, count: int) -> None:
        """The Broker is unreachable for a while; messages that have waited for too long fail when the next attempt fails."""
        self.broker.is_reachable = False
        self.lose_connection(0, layers)
        for _ in range(count):
            self.do(self._send_all, layers)
        if self.queue is not None:
            with sending_after_failures(self.queue._sends, partial(self._send_all, layers)):
                self.pass_time(seconds)
        self.broker.is_reachable = True
        self.pass_time(STEP_S)

    @rule(is_writable=st.booleans())
    def send_buffer(self, is_writable: bool) -> None:
        """The send buffer of the connection becomes full, or has room again."""
        self.broker.is_writable = False
        if is_writable:
            self.do(self.broker.become_writable)

    # --- always, and in the end -------------------------------------------------------------------------------------

    @invariant()
    def it_lives(self) -> None:
        if not hasattr(self, "sender"):
            return
        for context in self.errors:
            raise context.get("exception") or RuntimeError(context["message"])
        if self.in_order:
            check_order(self.broker.stored, self.broker.refused, self.callers)
        assert self.sender.queued_messages <= sum(len(caller.pending) for caller in self.callers)
        if self.queue is not None and not self.broker.held and not self.queue._retries:
            assert not any(caller.withdrawn for caller in self.callers), "a withdrawn message waits to be sent again"

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        try:
            self._left_alone()
            self.loop.run_until_complete(self.sender.close())
            self.it_lives()
        finally:
            self.loop.close()

    def _left_alone(self) -> None:
        """Check that everything is stored without faults, and nothing is left in the queue."""
        self.do(self.broker.become_writable)
        self.pass_time(LONG_S)
        for caller in self.callers:
            wanted = max([caller.next, *(number + 1 for number in caller.pending.values())])
            for _ in range(ENOUGH):
                self.drain()
                if caller.next >= wanted and not caller.pending:
                    break
                self.do(caller.send, self._submit, 1)
            assert set(range(wanted)) <= caller.stored | caller.refused
            assert not caller.pending
        sender, queue = self.sender, self.queue
        assert (sender.queued_messages, sender.queued_bytes) == (0, 0)
        if queue is not None:
            assert (queue._in_flight, queue._in_flight_bytes, queue._retries) == (set(), 0, [])
            assert (queue._sends.intake, queue._sends.link) == (State.ACCEPTING, State.SENDING)

    def drain(self) -> None:
        for _ in range(ENOUGH):
            while self.broker.held:
                self.do(self.broker.answer)
            self.pass_time(STEP_S)
            if self.sender.queued_messages and not self.broker.held:
                self.pass_time(LONG_S)


TestSendConversation = SendConversation.TestCase
TestSendConversation.settings = settings(max_examples=examples(300), stateful_step_count=20, derandomize=True)
"""The same examples in every run, so that a failure is caused by a change. The class below draws others."""


@pytest.mark.thorough
class TestOtherConversations(SendConversation.TestCase):
    settings = settings(max_examples=examples(1500), stateful_step_count=20)
