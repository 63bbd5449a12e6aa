"""A producer's send queue against a model of its broker, in virtual time."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.net.waiting_sends import Caller, State
from mqbridge.rocketmq.client.connection import connection as connections
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.client.producer.send_queue import PartitionSendQueue
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.example_counts import examples
from tests.kit.callers import OrderedCaller, check_order, sending_after_failures
from tests.kit.virtual_time import VirtualTimeLoop
from tests.rocketmq.client.broker import NS, TOPIC, A, B, Cluster, Link, refuses, scripted_client, store

QUEUE = Queue(TOPIC, "broker-a", 0)
IN_FLIGHT = {"in order": 1, "in order, never given up": 1, "any order": 3}
STEP_S, REQUEST_S, MAX_ELAPSED_S, LONG_S = 0.01, 2.0, 5.0, 100.0
"""Times that suffice for callbacks; of a request; for which failed sends are retried; and for all backoffs."""
ENOUGH = 40
"""Rounds after which a healthy broker has stored everything."""
TEMPORARY = [Status.SYSTEM_BUSY, Status.SERVICE_NOT_AVAILABLE, Status.TOPIC_NOT_EXIST, Status.GO_AWAY]
FOR_GOOD = [Status.MESSAGE_ILLEGAL, Status.INVALID_PARAMETER, Status.NO_PERMISSION]


class OneQueue(Cluster):
    """Holds each send until the test lets the broker answer it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Link, Command]] = []
        self.bodies: list[bytes] = []
        """What the queue has stored, at either broker."""
        self.refused: set[bytes] = set()
        self.on[Code.SEND_MESSAGE_V2] = lambda link, request: self.held.append((link, request))

    def answer(self) -> None:
        """Store the oldest send; the response is lost if the client has closed the connection."""
        link, request = self.held.pop(0)
        self.bodies.append(request.body)
        store(link, request)

    def refuse(self, code: int) -> None:
        link, request = self.held.pop(0)
        if code in (Status.MESSAGE_ILLEGAL, Status.INVALID_PARAMETER):
            self.refused.add(request.body)
        refuses(code)(link, request)

    def lose(self, *, stored: int) -> None:
        """All connections to the brokers end; the sends in flight are stored in part, their responses are lost."""
        self.bodies += [request.body for _, request in self.held[:stored]]
        self.held.clear()
        for link in self.links:
            if link.address != NS:
                link.drop()


class SendConversation(RuleBasedStateMachine):
    """Two callers send to one queue. With one request in flight, the order of each caller's messages is kept."""

    @initialize(kind=st.sampled_from(sorted(IN_FLIGHT)))
    def make(self, kind: str) -> None:
        self.loop = VirtualTimeLoop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.in_order, self.in_flight = IN_FLIGHT[kind] == 1, IN_FLIGHT[kind]
        self.max_elapsed_s = None if "never" in kind else MAX_ELAPSED_S
        self.cluster = OneQueue()
        self.patch = patch.object(connections, "dial", self.cluster.dial)
        self.patch.start()
        self.callers = [OrderedCaller(name) for name in "ab"]
        self.producer: QueueProducer = self.loop.run_until_complete(self._open())

    async def _open(self) -> QueueProducer:
        self.client = scripted_client(request=REQUEST_S)
        await self.client.connect()
        return self.client.producer(
            "P", TOPIC, in_flight_per_queue=self.in_flight, max_elapsed_s=self.max_elapsed_s, fail_behind=self.in_order
        )

    def do(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call this within the running loop, and return its result."""

        async def run() -> Any:
            return call(*arguments, **options)

        return self.loop.run_until_complete(run())

    def pass_time(self, seconds: float, layers: int | None = None) -> None:
        """Let time pass. With `layers`, both callers send in each of the iterations of the event loop after a failure."""
        if layers is None or self.queue is None:
            self.loop.run_until_complete(asyncio.sleep(seconds))
            return
        with sending_after_failures(self.queue._sends, partial(self._send_all, layers)):
            self.loop.run_until_complete(asyncio.sleep(seconds))

    @property
    def queue(self) -> PartitionSendQueue | None:
        return self.producer._send_queues.get(QUEUE)

    # --- callers ----------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 1), count=st.integers(1, 4), layers=st.integers(0, 4))
    def send(self, index: int, count: int, layers: int) -> None:
        for _ in range(0 if self.callers[index].withdrawn else count):
            self.do(self.callers[index].send, self._submit, layers)
        self.pass_time(STEP_S)

    def _send_all(self, layers: int) -> None:
        for caller in self.callers:
            if not caller.withdrawn:
                caller.send(self._submit, layers)

    def _submit(self, body: bytes, caller: Caller) -> "asyncio.Future[Any]":
        return self.producer.send_single(QUEUE, body, b"", caller=caller)

    @rule(index=st.integers(0, 1))
    def withdraw(self, index: int) -> None:
        self.do(self.producer.withdraw, frozenset(self.callers[index].owners()))
        self.pass_time(STEP_S)

    @rule(seconds=st.sampled_from([0.1, REQUEST_S + 1.0, MAX_ELAPSED_S]), layers=st.integers(0, 4))
    def time_passes(self, seconds: float, layers: int) -> None:
        """Let time pass: requests without a response time out, and may be repeated."""
        self.pass_time(seconds, layers)

    # --- the broker -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.cluster.held)
    @rule(count=st.integers(1, 4))
    def store(self, count: int) -> None:
        for _ in range(count):
            if self.cluster.held:
                self.do(self.cluster.answer)
                self.pass_time(STEP_S)

    @precondition(lambda self: self.cluster.held)
    @rule(code=st.sampled_from([*TEMPORARY, *FOR_GOOD]), layers=st.integers(0, 4))
    def refuse(self, code: int, layers: int) -> None:
        self.do(self.cluster.refuse, code)
        self.pass_time(STEP_S, layers)

    @rule(stored=st.integers(0, 3), layers=st.integers(0, 4))
    def lose_connection(self, stored: int, layers: int) -> None:
        self.do(self.cluster.lose, stored=stored)
        self.pass_time(STEP_S, layers)

    @rule(seconds=st.sampled_from([1.0, 2 * MAX_ELAPSED_S]), layers=st.integers(0, 4), count=st.integers(0, 3))
    def outage(self, seconds: float, layers: int, count: int) -> None:
        """Both brokers are unreachable for a while."""
        self.cluster.unreachable = {A, B}
        self.lose_connection(0, layers)
        for _ in range(count):
            self.do(self._send_all, layers)
        self.pass_time(seconds, layers)
        self.cluster.unreachable = set()
        self.pass_time(STEP_S)

    @rule()
    def move_master(self) -> None:
        """The master of the queue moves to another address; the old one does not accept sends any more."""
        brokers = self.cluster.brokers
        brokers["broker-a"], brokers["broker-b"] = brokers["broker-b"], brokers["broker-a"]
        self.do(self.cluster.lose, stored=0)
        self.pass_time(STEP_S)

    @rule(is_there=st.booleans(), layers=st.integers(0, 4))
    def remove_queue(self, is_there: bool, layers: int) -> None:
        """An operator takes the queue away, or brings it back. The broker refuses sends meanwhile."""
        self.cluster.topics[TOPIC] = {"broker-a": int(is_there), "broker-b": 1}
        if not is_there and self.cluster.held:
            self.refuse(Status.NO_PERMISSION, layers)

    @rule(is_closed=st.booleans(), layers=st.integers(0, 4))
    def close_broker(self, is_closed: bool, layers: int) -> None:
        """An administrator forbids writing at the queue's broker, or permits it again."""
        self.cluster.closed = {"broker-a"} if is_closed else set()
        for _ in range(len(self.cluster.held) if is_closed else 0):
            self.refuse(Status.NO_PERMISSION, layers)

    @rule(answer=st.sampled_from(["invalid", "refusal", "route"]))
    def name_server(self, answer: str) -> None:
        """The name server answers queries of the route with nonsense or a refusal, or is healthy again."""
        bad = {"invalid": _nonsense, "refusal": refuses(Status.SYSTEM_ERROR)}
        self.cluster.at = {(NS, Code.GET_ROUTEINFO_BY_TOPIC): bad[answer]} if answer in bad else {}

    # --- always, and in the end -------------------------------------------------------------------------------------

    @invariant()
    def it_lives(self) -> None:
        if not hasattr(self, "producer"):
            return
        for context in self.errors:
            raise context.get("exception") or RuntimeError(context["message"])
        if self.in_order:
            check_order(self.cluster.bodies, self.cluster.refused, self.callers)
        if self.queue is not None and not self.queue._in_flight:
            assert not any(caller.withdrawn for caller in self.callers), "a withdrawn request waits to be sent again"

    def teardown(self) -> None:
        if not hasattr(self, "producer"):
            return
        try:
            self._left_alone()
            self.loop.run_until_complete(self.producer.close())
            self.loop.run_until_complete(self.client.close())
            self.it_lives()
        finally:
            self.patch.stop()
            self.loop.close()

    def _left_alone(self) -> None:
        """Check that everything is stored without faults, and nothing is left in the queue."""
        self.cluster.at = {}
        self.cluster.closed = set()
        self.cluster.topics[TOPIC] = {"broker-a": 1, "broker-b": 1}
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
        assert (self.producer.pending, self.client.window.sends) == (0, 0)
        if self.queue is not None:
            assert self.queue._ambiguous == []
            assert (self.queue._sends.intake, self.queue._sends.link) == (State.ACCEPTING, State.SENDING)

    def drain(self) -> None:
        for _ in range(ENOUGH):
            while self.cluster.held:
                self.do(self.cluster.answer)
            self.pass_time(STEP_S)
            if self.producer.pending and not self.cluster.held:
                self.pass_time(LONG_S)


def _nonsense(link: Link, request: Command) -> None:
    link.answer(request, body=json.dumps({"queueDatas": 5}).encode())


TestSendConversation = SendConversation.TestCase
TestSendConversation.settings = settings(max_examples=examples(300), stateful_step_count=20, derandomize=True)
"""The same examples in every run, so that a failure is caused by a change. The class below draws others."""


@pytest.mark.thorough
class TestOtherConversations(SendConversation.TestCase):
    settings = settings(max_examples=examples(1500), stateful_step_count=20)
