"""The whole producer against a model of its broker, in virtual time.

Every third message is larger than one of the broker's limits, so it is sent in chunks; what counts as stored is what a consumer
of the topic receives.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import LocalProtocolError, TopicChanged
from mqbridge.net.waiting_sends import Caller
from mqbridge.net.waiting_sends import State as SendState
from mqbridge.pulsar.client.connection import connection, handshake
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.client.producer.producer_state import TRANSITIONS, Event, ProducerState, State
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from tests.example_counts import examples
from tests.kit.callers import OrderedCaller, check_order, sending_after_failures
from tests.kit.virtual_time import VirtualTimeLoop
from tests.pulsar.client.broker import Link, scripted_client
from tests.pulsar.client.store import Store

TOPIC = "persistent://public/default/t-partition-0"
KINDS = ["plain", "in order", "in order", "deduplicated", "exclusive"]
WINDOW = 3
"""Entries in flight: few, so that others wait."""
LIMITS = [1000, 2000]
"""The limits of the broker for the size of an entry."""
LARGE_BYTES = 2500
CHUNK_EXPIRY_S = 60.0
"""Time after which consumers in Java drop an incomplete message."""
STEP_S, MAX_ELAPSED_S, LONG_S = 0.01, 5.0, 100.0
"""Times that suffice for callbacks; after which entries expire, if the producer fails in order; and for all backoffs."""
ENOUGH = 40
"""Rounds after which a healthy broker has stored everything."""
RETRY, REFUSED, FATAL = pb.PersistenceError, pb.ChecksumError, pb.TopicTerminatedError


class OneTopic(Store):
    """Holds each SEND until the test lets it answer, and each PRODUCER while another producer has exclusive access."""

    def __init__(self, *, deduplicate: bool) -> None:
        super().__init__(deduplicate=deduplicate, max_message_size=LIMITS[-1])
        self.limits: dict[Link, int] = {}
        """The limit that a connection was told."""
        self.times: list[tuple[float, float]] = []
        """When each stored entry arrived, and when it was stored (loop times)."""
        self.held: list[tuple[Link, Frame]] = []
        self.arrivals: dict[int, float] = {}
        """When each held frame arrived, by its identity."""
        self.refused: set[bytes] = set()
        self.open: set[tuple[Link, int]] = set()
        """The registered producers."""
        self.is_taken = False
        """True while another producer has exclusive access."""
        self.topics[TOPIC.removesuffix("-partition-0")] = 1
        self.deletes_at_registration = False
        """True to delete the partitioned topic just before the next PRODUCER, which creates the partition again."""
        self.sent_after_deletion = 0
        self.waiting: tuple[Link, Frame] | None = None
        """The PRODUCER that waits for exclusive access."""
        self.on[BaseCommand.CLOSE_PRODUCER] = self._on_close

    @property
    def stored(self) -> list[bytes]:
        """The bodies of the messages that a consumer in Java receives."""
        return received(zip(self.times, map(decode_entry, self.logs[TOPIC]), strict=True))

    @property
    def holds_chunk(self) -> bool:
        """True if the oldest held entry is a chunk."""
        _, frame = self.held[0]
        return describes_chunk(decode_entry(frame.data, frame.entry_offset).metadata)

    def _welcome(self, link: Link, frame: Frame) -> None:
        self.limits[link] = self.max_message_size
        super()._welcome(link, frame)

    def _on_producer(self, link: Link, frame: Frame) -> None:
        asked = frame.command.producer
        if self.deletes_at_registration:
            self.topics[TOPIC.removesuffix("-partition-0")] = None
        if self.is_taken:
            self.waiting = link, frame
            not_ready = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name="made-up", producer_ready=False)
            link.send(producer_success=not_ready)
        else:
            self.open.add((link, asked.producer_id))
            super()._on_producer(link, frame)

    def grant(self) -> None:
        """The other producer has closed."""
        self.is_taken = False
        waiting, self.waiting = self.waiting, None
        if waiting is not None and waiting[0].open:
            self._on_producer(*waiting)

    def _on_close(self, link: Link, frame: Frame) -> None:
        asked = frame.command.close_producer
        self.forget(link)
        link.send(success=pb.CommandSuccess(request_id=asked.request_id))

    def _on_send(self, link: Link, frame: Frame) -> None:
        self.sent_after_deletion += None in self.topics.values()
        size = len(decode_entry(frame.data, frame.entry_offset).payload)
        assert size <= self.limits[link], "a broker would close the connection"
        if (link, frame.command.send.producer_id) in self.open:
            self.held.append((link, frame))
            self.arrivals[id(frame)] = link.loop.time()

    def answer(self, count: int) -> None:
        """Store the oldest entries."""
        for _ in range(min(count, len(self.held))):
            link, frame = self.held.pop(0)
            super()._on_send(link, frame)
            if len(self.times) < len(self.logs[TOPIC]):  # else it is a duplicate
                self.times.append((self.arrivals[id(frame)], link.loop.time()))

    def refuse(self, code: int) -> None:
        """Answer the oldest entry with an error; only after REFUSED, later ones may be stored over this registration."""
        link, frame = self.held.pop(0)
        asked = frame.command.send
        if code == REFUSED:
            self.refused.add(body_of(decode_entry(frame.data, frame.entry_offset)))
        else:
            self.forget(link)
        highest = max(asked.sequence_id, asked.highest_sequence_id)
        link.send(send_error=pb.CommandSendError(producer_id=asked.producer_id, sequence_id=highest, error=code, message="no"))

    def forget(self, link: Link | None = None) -> None:
        """End all registrations, or those of one connection; their entries are lost."""
        self.open = {each for each in self.open if link is not None and each[0] is not link}
        self.held = [each for each in self.held if link is not None and each[0] is not link]

    def lose(self, stored: int) -> None:
        """Store the oldest entries, lose their receipts and the rest."""
        self.drop_answers = True
        self.answer(stored)
        self.drop_answers = False
        self.forget()
        self.waiting = None


def body_of(entry: Entry) -> bytes:
    """Return the body of a message, which is also its key: each chunk has it."""
    return entry.metadata.partition_key.encode()


def received(entries: Iterable[tuple[tuple[float, float], Entry]]) -> list[bytes]:
    """Return the bodies of the complete messages among entries, each with the times when it arrived and when it was stored.

    As in Java, an incomplete message is dropped CHUNK_EXPIRY_S after its first chunk, and so is one with a missing chunk. The
    time for which the broker of the test holds a later chunk does not count.
    """
    bodies: list[bytes] = []
    incomplete: dict[str, tuple[float, int]] = {}
    for (arrived, stored), entry in entries:
        metadata = entry.metadata
        if not describes_chunk(metadata):
            bodies.append(body_of(entry))
            continue
        uuid, chunk = metadata.uuid, metadata.chunk_id
        if chunk == 0:
            incomplete[uuid] = stored, 0
        elif uuid in incomplete:
            begun, last = incomplete[uuid]
            if arrived > begun + CHUNK_EXPIRY_S or chunk > last + 1:
                del incomplete[uuid]
            else:
                incomplete[uuid] = begun, max(last, chunk)
        if uuid in incomplete and incomplete[uuid][1] == metadata.num_chunks_from_msg - 1:
            bodies.append(body_of(entry))
            del incomplete[uuid]
    return bodies


class ProducerConversation(RuleBasedStateMachine):
    """One producer with two callers, from its first PRODUCER to its end."""

    @initialize(kind=st.sampled_from(KINDS), is_taken=st.booleans())
    def make(self, kind: str, is_taken: bool) -> None:
        self.loop = VirtualTimeLoop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.kind = kind
        self.broker = OneTopic(deduplicate=kind == "deduplicated")
        self.broker.is_taken = kind == "exclusive" and is_taken
        self.patches = [
            patch.object(handshake, "dial", self.broker.dial),
            patch.object(connection, "MAX_SENDS_IN_FLIGHT", WINDOW),
        ]
        for each in self.patches:
            each.start()
        self.callers = [OrderedCaller(name) for name in "ab"]
        self.ended = False
        self.do(self._open)
        self.pass_time(STEP_S)

    def _open(self) -> None:
        self.client = scripted_client()
        in_order = self.kind == "in order"
        self.producer = self.client.producer(
            TOPIC,
            ProducerSettings(
                name="me" if self.kind == "deduplicated" else None,
                access=pb.WaitForExclusive if self.kind == "exclusive" else pb.Shared,
                max_elapsed_s=MAX_ELAPSED_S if in_order else None,
                fails_in_order=in_order,
                retries_first_opening=True,
                chunking=True,
            ),
        )

    def do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call this within the running loop, and return its result."""

        async def run() -> Any:
            return call(*arguments)

        return self.loop.run_until_complete(run())

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    # --- callers ----------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 1), count=st.integers(1, 4), layers=st.integers(0, 4))
    def send(self, index: int, count: int, layers: int) -> None:
        def send() -> None:
            for _ in range(0 if self.callers[index].withdrawn or self.ended else count):
                self.callers[index].send(self._submit, layers)

        self.do(send)
        self.pass_time(STEP_S)

    def _submit(self, body: bytes, caller: Caller) -> "asyncio.Future[Any]":
        payload = bytes(LARGE_BYTES if int(body.rpartition(b":")[2]) % 3 == 2 else 10)
        metadata = MessageMetadata(partition_key=body.decode(), num_messages_in_batch=1)
        return self.producer.send(metadata, join_batch([(SingleMessageMetadata(), payload)]), caller=caller)

    @rule(index=st.integers(0, 1))
    def withdraw(self, index: int) -> None:
        self.do(self.producer.withdraw, frozenset(self.callers[index].owners()))
        self.pass_time(STEP_S)

    @rule(seconds=st.sampled_from([1.0, MAX_ELAPSED_S / 2, MAX_ELAPSED_S]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @precondition(lambda self: self.kind == "in order" and not self.ended)
    @rule(count=st.integers(1, 2 * WINDOW), layers=st.integers(0, 4), down=st.booleans())
    def let_entries_expire(self, count: int, layers: int, down: bool) -> None:
        """Entries wait for too long for responses, or for a broker that comes back, with all that was in flight lost.

        Both callers send in each of the next iterations of the event loop: they do not know yet that their entries have expired.
        """
        if down:
            self.broker.unreachable = {"broker"}
            self.do(self.broker.lose, 0)
            self.do(self.broker.link.drop)
            self.pass_time(STEP_S)

        def send() -> None:
            for caller in self.callers:
                if not caller.withdrawn:
                    caller.send(self._submit, layers)

        for _ in range(count):
            self.do(send)
        with sending_after_failures(self.producer._sends, send):
            self.pass_time(MAX_ELAPSED_S + 1.0)
        self.broker.unreachable = set()
        self.pass_time(STEP_S)

    # --- the broker -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.broker.held)
    @rule(count=st.integers(1, WINDOW))
    def store(self, count: int) -> None:
        self.do(self.broker.answer, count)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.broker.held)
    @rule(code=st.sampled_from([RETRY, REFUSED]))
    def refuse(self, code: int) -> None:
        self.do(self.broker.refuse, code)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.broker.held)
    @rule(really=st.integers(0, 9))
    def terminate_topic(self, really: int) -> None:
        """End the producer, in one of ten cases. Later steps do nothing."""
        if really == 9:
            self.do(self.broker.refuse, FATAL)
            self.pass_time(STEP_S)
            self.ended = True
            assert self.producer._state.link is State.ENDED

    @precondition(lambda self: not self.ended and self.broker.links)
    @rule(stored=st.integers(0, WINDOW), withdraws=st.booleans(), limit=st.sampled_from(LIMITS))
    def lose_connection(self, stored: int, withdraws: bool, limit: int = LIMITS[0]) -> None:
        """The broker may have stored some entries, but their receipts are lost. A caller may have withdrawn its entries.

        Another broker may serve the topic then, which has another limit.
        """
        self.broker.max_message_size = limit
        if withdraws:
            self.withdraw(0)
        self.do(self.broker.lose, stored)
        self.do(self.broker.link.drop)
        self.pass_time(STEP_S)

    @precondition(lambda self: not self.ended and self.broker.open)
    @rule(stored=st.integers(0, WINDOW))
    def unload(self, stored: int) -> None:
        link, producer_id = next(iter(self.broker.open))
        self.do(self.broker.lose, stored)
        close = pb.CommandCloseProducer(producer_id=producer_id, request_id=ids.NO_REQUEST)
        self.do(lambda: link.send(close_producer=close))
        self.pass_time(STEP_S)

    @precondition(lambda self: not self.ended and self.broker.open)
    @rule(really=st.integers(0, 4), stored=st.integers(0, WINDOW), is_late=st.booleans())
    def delete_topic(self, really: int, stored: int, is_late: bool) -> None:
        """Delete the topic, in one of five cases; `is_late`: only when the producer has registered again. Ends the producer."""
        if really != 4:
            return
        if is_late:
            self.broker.deletes_at_registration = True
        else:
            self.broker.topics[TOPIC.removesuffix("-partition-0")] = None
        link, producer_id = next(iter(self.broker.open))
        self.do(self.broker.lose, stored)
        close = pb.CommandCloseProducer(producer_id=producer_id, request_id=ids.NO_REQUEST)
        self.do(lambda: link.send(close_producer=close))
        if self.broker.is_taken:
            self.other_producer(False)
        self.pass_time(LONG_S)
        self.ended = True
        assert isinstance(self.producer._state.end_error, TopicChanged)
        assert self.broker.sent_after_deletion == 0

    @precondition(lambda self: not self.ended and self.broker.links)
    @rule(seconds=st.sampled_from([1.0, 2 * MAX_ELAPSED_S, LONG_S]), stored=st.integers(0, WINDOW))
    def outage(self, seconds: float, stored: int) -> None:
        """The broker is unreachable for a while."""
        self.broker.unreachable = {"broker"}
        self.lose_connection(stored, False)
        self.pass_time(seconds)
        self.broker.unreachable = set()
        self.pass_time(STEP_S)

    @precondition(lambda self: not self.ended and self.broker.open)
    @rule(index=st.integers(0, 1), seconds=st.sampled_from([1.0, LONG_S]))
    def outage_between_chunks(self, index: int, seconds: float) -> None:
        """The broker stores the first chunk of a message, and is then unreachable for a while."""
        self.drain()
        self.send(index, 3, 1)
        while self.broker.held and not self.broker.holds_chunk:
            self.store(1)
        if self.broker.held:
            self.store(1)
            self.outage(seconds, 0)

    @precondition(lambda self: self.kind == "exclusive")
    @rule(is_taken=st.booleans())
    def other_producer(self, is_taken: bool) -> None:
        """Another producer gets exclusive access when this one registers next, or closes."""
        self.broker.is_taken = is_taken
        if not is_taken:
            self.do(self.broker.grant)
            self.pass_time(STEP_S)

    # --- always, and in the end -------------------------------------------------------------------------------------

    @invariant()
    def it_lives(self) -> None:
        if not hasattr(self, "producer"):
            return
        for context in self.errors:
            raise context.get("exception") or RuntimeError(context["message"])
        check_order(self.broker.stored, self.broker.refused, self.callers)
        state, registered_at = self.producer._state, self.producer._registration.connection
        assert (state.link is State.REGISTERED) == (registered_at is not None)
        assert (state.link is State.REGISTERED) == (self.producer._sends.link is SendState.SENDING)
        assert (state.link is State.ENDED) == self.ended == (self.producer._sends.link is SendState.CLOSED)
        if state.link is not State.REGISTERED:
            assert not any(caller.withdrawn for caller in self.callers), "a withdrawn entry waits to be sent again"
        waiting = self.producer._sends.waiting
        ended = [entry for entry in waiting if entry.future.done() and not entry.has_failed_chunk]
        assert not ended, "an entry that has ended waits to be sent again"
        if state.link is State.WAITING:
            assert self.producer.awaits_exclusive_access
            assert self.broker.waiting is not None

    def teardown(self) -> None:
        if not hasattr(self, "producer"):
            return
        try:
            self._left_alone()
            self.loop.run_until_complete(self.producer.close())
            assert self.producer.closed
            assert not self.broker.open or self.ended
            self.loop.run_until_complete(self.client.close())
            self.pass_time(STEP_S)
            self.ended = True
            self.it_lives()
        finally:
            for each in self.patches:
                each.stop()
            self.loop.close()

    def _left_alone(self) -> None:
        """Check that a producer without faults stores everything, and leaves no room of the window occupied."""
        if not self.ended and self.broker.is_taken:
            self.other_producer(False)
        self.pass_time(LONG_S)
        for caller in self.callers:
            wanted = max([caller.next, *(number + 1 for number in caller.pending.values())])
            for _ in range(ENOUGH):
                self.drain()
                if self.ended or (caller.next >= wanted and not caller.pending):
                    break
                self.do(caller.send, self._submit, 1)
            assert self.ended or set(range(wanted)) <= caller.stored | caller.refused
            assert not caller.pending
        assert self.producer.pending == 0
        self.loop.run_until_complete(asyncio.wait_for(self.producer.flush(), 1.0))
        if not self.ended:
            registered_at = self.producer._registration.connection
            assert registered_at is not None
            assert registered_at.window.sends == 0
            assert self.producer._sends.intake is SendState.ACCEPTING

    def drain(self) -> None:
        for _ in range(ENOUGH):
            self.pass_time(STEP_S)
            self.do(self.broker.answer, WINDOW)
            if self.producer.pending and not self.broker.held:
                self.pass_time(1.0)


TestProducerConversation = ProducerConversation.TestCase
TestProducerConversation.settings = settings(max_examples=examples(300), stateful_step_count=20, derandomize=True)
"""The same examples in every run, so that a failure is caused by a change. The class below draws others."""


@pytest.mark.thorough
@pytest.mark.timeout(1800)
class TestOtherConversations(ProducerConversation.TestCase):
    settings = settings(max_examples=examples(1500), stateful_step_count=20)


def test_every_state_is_reachable_and_only_ended_is_final() -> None:
    assert {*TRANSITIONS.values(), State.DETACHED} == set(State)
    assert {after for (before, _), after in TRANSITIONS.items() if before is State.ENDED} == {State.ENDED}
    for state in set(State) - {State.ENDED}:
        assert {TRANSITIONS[state, event] for event in (Event.DETACH, Event.END)} == {State.DETACHED, State.ENDED}


def test_a_transition_that_is_not_in_the_table_raises() -> None:
    state = ProducerState(None, sole_sender=False)
    with pytest.raises(LocalProtocolError, match="NOT_READY in state DETACHED"):
        state.on_not_ready()
    state.begin_register()
    assert state.on_registered()
    with pytest.raises(LocalProtocolError, match="REGISTER in state REGISTERED"):
        state.begin_register()
