"""The whole consumer against a model of its broker (`one_topic.py`), in virtual time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import ENTRY_BYTES, Entry
from mqbridge.pulsar.wire.ids import EntryId, full_mask
from tests.example_counts import examples
from tests.kit.virtual_time import VirtualTimeLoop
from tests.pulsar.client.broker import scripted_client
from tests.pulsar.client.one_topic import OneTopic


class Kind(NamedTuple):
    """How a consumer subscribes and acknowledges; `batch` is the number of messages in every entry."""

    type: int = Types.Exclusive
    reader_from: EntryId | None = None
    persistent: bool = True
    acks_individually: bool = False
    batch: int = 1
    batch_index_ack: bool = False

    @property
    def durable(self) -> bool:
        """True if the broker keeps a cursor."""
        return self.persistent and self.reader_from is None

    @property
    def failover(self) -> bool:
        return self.type == Types.Failover


KINDS = {
    "exclusive": Kind(),
    "failover": Kind(Types.Failover),
    "single acks": Kind(acks_individually=True),
    "batches": Kind(batch=3),
    "batches by index": Kind(batch=3, batch_index_ack=True),
    "single acks of batches": Kind(acks_individually=True, batch=3),
    "single acks of batches by index": Kind(acks_individually=True, batch=3, batch_index_ack=True),
    "earliest reader": Kind(reader_from=ids.EARLIEST),
    "latest reader": Kind(reader_from=ids.LATEST),
    "non-persistent": Kind(persistent=False),
}
DRAWN = [*KINDS, "failover", "single acks"]
MAX_BYTES, BIG = 8_000, 6_000
"""Room for four small entries or one big entry: permits granted for small entries are too many for big ones."""
STEP_S, ACKS_S, LONG_S = 0.01, 0.3, 100.0
"""Times that suffice for callbacks; for sending acknowledgements; and for backoffs, timeouts and the stall detector."""
MAX_STEPS = 200
"""Number of rounds that suffices to read every conversation to its end."""


class ConsumerConversation(RuleBasedStateMachine):
    """One consumer from its first SUBSCRIBE to its end. The broker model, `take` and `teardown` make the assertions."""

    @initialize(name=st.sampled_from(DRAWN), consumed=st.integers(0, 4))
    def make(self, name: str, consumed: int) -> None:
        self.loop = VirtualTimeLoop()
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.errors: list[dict[str, Any]] = []
        self.kind = kind = KINDS[name]
        self.broker = OneTopic(
            reads=kind.reader_from is not None, failover=kind.failover, persistent=kind.persistent, batch=kind.batch
        )
        self.acknowledged: dict[EntryId, int] = {}
        """Entry -> mask of the messages that were acknowledged when it was delivered."""
        self.asked_for_redelivery = False
        self.confirmations: list[asyncio.Task[None]] = []
        self.patch = patch.object(handshake, "dial", self.broker.dial)
        self.patch.start()
        self.last: EntryId = ids.EARLIEST
        self.last_number, self.run_of_last = -1, -1
        self.taken: list[EntryId] = []
        self.closed = False
        self.run(self._open())
        self.pass_time(STEP_S)
        if kind.persistent and kind.reader_from != ids.LATEST:
            self.broker.owed = self.broker.messages(range(self.broker.length))
        if kind.failover:
            self.become_active()
        if consumed:
            self.consume(consumed, True)

    async def _open(self) -> None:
        kind = self.kind
        domain = "persistent" if kind.persistent else "non-persistent"
        self.client = scripted_client()
        subscription = Subscription(
            "s", kind.type, reader_from=kind.reader_from, max_bytes=MAX_BYTES, batch_index_ack=kind.batch_index_ack
        )
        self.consumer = await self.client.consumer(f"{domain}://public/default/t", subscription)

    def restart(self) -> None:
        """Close the consumer and open another one, as a new process does."""
        self.run(self.consumer.close())
        self.run(self.client.close())
        self.run(self._open())
        self.last, self.taken, self.run_of_last = ids.EARLIEST, [], -1
        if self.kind.failover:
            self.become_active()

    def run(self, what: Awaitable[Any]) -> None:
        self.loop.run_until_complete(what)

    def do(self, what: Callable[..., Any], *args: Any) -> Any:
        """Call `what` within the running loop, and return its result."""

        async def call() -> Any:
            return what(*args)

        return self.loop.run_until_complete(call())

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @property
    def registered(self) -> bool:
        return not self.closed and self.broker.live() is not None

    @property
    def settled(self) -> bool:
        return self.registered and self.consumer._registration.connection is not None

    # --- connections ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.registered)
    @rule(acks=st.booleans(), forgets=st.integers(0, 3), slow=st.booleans())
    def lose_connection(self, acks: bool, forgets: int, slow: bool) -> None:
        """Lose the connection. A killed broker also forgets its last acknowledgements; with `acks` some are not sent yet."""
        if acks and self.taken and not self.broker.reads:
            self.acknowledge(forgets)
        self.broker.forget_acks(forgets)
        self.broker.holds_answers = slow
        self.do(self.broker.link.drop)
        self.do(self.broker.forget_registration)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.registered)
    @rule(slow=st.booleans())
    def unload(self, slow: bool) -> None:
        self.broker.holds_answers = slow
        self.do(self.broker.close_consumer)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.broker.held)
    @rule()
    def answer_late(self) -> None:
        self.do(self.broker.answer_held)
        self.pass_time(STEP_S)

    @precondition(lambda self: not self.closed)
    @rule()
    def outage(self) -> None:
        """Make all brokers unreachable for a while."""
        self.broker.unreachable = {"broker", "green"}
        self.do(self.broker.link.drop)
        self.do(self.broker.forget_registration)
        self.pass_time(1.0)
        self.broker.unreachable = set()

    def reset(self, back: int) -> None:
        """Move the cursor, as an operator does."""
        self.broker.set_cursor(max(self.broker.first - 1, min(self.broker.cursor - back, self.broker.length - 1)))

    @precondition(lambda self: self.settled and self.kind.durable)
    @rule(back=st.integers(-3, 8), slow=st.booleans(), waits=st.booleans(), index=st.integers(0, 12))
    def reset_from_outside(self, back: int, slow: bool, waits: bool = True, index: int = 0) -> None:
        """An operator moves the cursor; unless the consumer `waits`, an acknowledgement is not sent yet."""
        if waits:
            self.pass_time(ACKS_S)
        elif self.taken:
            self.acknowledge(index)
        self.reset(back)
        self.unload(slow)

    # For a moment after leaving, partly acknowledged batches are not delivered again; see `consumer_state.py`.
    @precondition(lambda self: self.settled and self.kind.durable and not (self.kind.acks_individually and self.kind.batch > 1))
    @rule(back=st.integers(-3, 8), index=st.integers(0, 12), refuses=st.booleans())
    def reset_during_a_redelivery(self, back: int, index: int, refuses: bool) -> None:
        """An operator moves the cursor after the consumer has left and before it subscribes again."""
        if self.taken:
            self.acknowledge(index)
        self.broker.holds_close, self.broker.refusals = not refuses, int(refuses)
        self.do(self.consumer.redeliver)
        self.pass_time(STEP_S)
        self.reset(back)
        self.do(self.broker.close_consumer)
        self.pass_time(STEP_S)
        self.do(self.broker.answer_held)
        self.pass_time(1.0)

    @precondition(lambda self: self.settled and self.kind.durable)
    @rule(back=st.integers(-3, 8), index=st.integers(0, 12))
    def reset_during_an_outage(self, back: int, index: int) -> None:
        """An operator moves the cursor while the consumer is cut off; all sent acknowledgements had arrived, and one waits."""
        self.pass_time(2 * ACKS_S)
        if self.taken:
            self.acknowledge(index)
        self.broker.unreachable = {"broker", "green"}
        self.do(self.broker.link.drop)
        self.do(self.broker.forget_registration)
        self.reset(back)
        self.pass_time(1.0)
        self.broker.unreachable = set()

    @precondition(lambda self: not self.closed)
    @rule()
    def begin_ledger(self) -> None:
        self.broker.begin_ledger()

    @precondition(lambda self: not self.closed and self.kind.persistent and len(self.broker.ledgers) > 1)
    @rule()
    def trim(self) -> None:
        """Delete all ledgers but the last one, also with entries that were not delivered."""
        self.broker.trim()

    @precondition(lambda self: not self.closed and self.broker.batch > 1 and self.taken)
    @rule(index=st.integers(0, 12), message=st.integers(0, 2))
    def acknowledge_part(self, index: int, message: int) -> None:
        """Acknowledge a message of an entry that was taken, or its messages up to this one."""
        if self.run_of_last != self.consumer.generation:
            return
        entry_id, batch = self.taken[min(index, len(self.taken) - 1)], self.broker.batch
        if not self.kind.acks_individually:
            self.do(self.consumer.acknowledge_up_to, entry_id, message, batch)
        elif self.do(self.consumer.acknowledge_messages, entry_id, self.acknowledged[entry_id] | 1 << message, batch):
            self.taken.remove(entry_id)

    @precondition(lambda self: self.settled and not self.broker.reads)
    @rule(receipt=st.sampled_from(["sent", "lost", "refused", "cut"]))
    def confirm(self, receipt: str) -> None:
        """Send the acknowledgements with requests for receipts; later steps do not wait for those."""

        async def confirm() -> None:
            with contextlib.suppress(ClusterError):
                await self.consumer.confirm_acks()

        self.broker.receipt = receipt
        self.confirmations.append(self.do(self.loop.create_task, confirm()))
        self.pass_time(STEP_S)
        self.broker.receipt = "sent"

    @precondition(lambda self: not self.closed and self.taken and self.broker.persistent)
    @rule(index=st.integers(0, 12), delay=st.sampled_from([0.0, 1.0]))
    def negative_acknowledge(self, index: int, delay: float) -> None:
        self.asked_for_redelivery = True
        self.do(self.consumer.negative_acknowledge, self.taken[min(index, len(self.taken) - 1)], delay)

    @precondition(lambda self: self.settled and self.kind.persistent)
    @rule(closes=st.booleans(), by=st.sampled_from([-10, 10]))
    def migrate(self, closes: bool, by: int = -10) -> None:
        self.do(partial(self.broker.migrate, closes=closes, by=by))
        self.pass_time(STEP_S)

    # --- entries ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), big=st.booleans())
    def publish(self, count: int, big: bool) -> None:
        new = range(self.broker.length, self.broker.length + count)
        # Entries of a non-persistent topic that exceed the budget are lost.
        self.broker.sizes += [BIG if big and self.broker.persistent else 1] * count
        if self.broker.persistent:
            self.broker.owed |= self.broker.messages(new)

    @precondition(lambda self: not self.closed)
    @rule(count=st.integers(1, 12))
    def deliver(self, count: int) -> None:
        self.do(self.broker.deliver, count)
        self.pass_time(STEP_S)

    @precondition(lambda self: not self.closed and self.broker.late)
    @rule(count=st.integers(1, 8))
    def deliver_late(self, count: int) -> None:
        self.do(self.broker.deliver_late, count)
        self.pass_time(STEP_S)

    @precondition(lambda self: not self.closed)
    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        for _ in range(count):
            if (entry := self.do(self.consumer.take)) is None:
                break
            number = self.broker.number(entry.id) if entry.defect else int(entry.payload.rstrip(b"\0"))
            if self.consumer.generation != self.run_of_last:
                self.run_of_last, self.last, self.taken = self.consumer.generation, ids.EARLIEST, []
                self.last_number = -1
            if self.broker.persistent:
                assert entry.id == self.broker.position(number), "of another cluster"
                assert entry.defect or entry.id > self.last, "twice in a run, or out of order"
            assert entry.defect or number > self.last_number, "out of order"
            self.last, self.last_number = max(entry.id, self.last), max(number, self.last_number)
            self.taken.append(entry.id)
            mask = ids.from_words(entry.ack_set) if entry.ack_set else -1
            self.acknowledged[entry.id] = ~mask & full_mask(self.broker.batch)
            self.broker.owed -= self.broker.messages(self._entries_of(entry, number), mask)
        self.pass_time(STEP_S)

    def _entries_of(self, entry: Entry, number: int) -> list[int]:
        """Return the numbers of the entries that the application has seen with this one, whose number is given."""
        chunks = self.broker.chunks_with(number) or [number]
        if entry.defect is None:
            return chunks
        return [chunks[metadata.chunk_id] for metadata, _ in entry.chunks] or [number]

    @precondition(lambda self: self.settled)
    @rule(count=st.integers(1, 8), acknowledges=st.booleans())
    def consume(self, count: int, acknowledges: bool) -> None:
        """Deliver, take and acknowledge in one step, so that examples make progress."""
        for _ in range(2):
            self.deliver(count)
            self.take(count)
        if acknowledges and not self.broker.reads:
            self.acknowledge(2 * count)
            self.flush()

    # --- acknowledgements and positions -----------------------------------------------------------------------------

    @precondition(lambda self: not self.closed and not self.broker.reads and self.taken)
    @rule(index=st.integers(0, 12))
    def acknowledge(self, index: int) -> None:
        """Acknowledge an entry that was taken, perhaps in an older generation."""
        if not self.taken:
            return
        entry_id = self.taken[min(index, len(self.taken) - 1)]
        if self.kind.acks_individually:
            if self.run_of_last == self.consumer.generation:
                self.do(self.consumer.acknowledge, entry_id)
                self.taken.remove(entry_id)  # an application acknowledges once per delivery
        else:
            self.do(self.consumer.acknowledge_up_to, entry_id)

    @rule()
    def flush(self) -> None:
        self.pass_time(ACKS_S)

    @precondition(lambda self: not self.closed)
    @rule()
    def redeliver(self) -> None:
        if not self.broker.persistent:
            self.broker.owed.clear()
        self.do(self.consumer.redeliver)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.settled and self.kind.persistent)
    @rule(acks=st.booleans(), to=st.integers(0, 6), fails=st.sampled_from(["", "before", "after", "silent"]))
    def seek(self, acks: bool, to: int, fails: str) -> None:
        """Seek to an entry after or before the last acknowledged one."""
        self.consume(8, acks)
        self.broker.seek_fails = fails
        self.run(self.consumer.seek(self.broker.position(min(to, self.broker.length))))
        self.pass_time(STEP_S)

    @precondition(lambda self: self.kind.failover and self.settled and self.broker.active)
    @rule(
        acks=st.booleans(), unread=st.sampled_from([0, 12]), back=st.integers(-3, 3), then=st.sampled_from(["", "lost", "active"])
    )
    def lose_activity(self, acks: bool, unread: int, back: int, then: str) -> None:
        """Another consumer becomes active, perhaps while entries arrive here; it acknowledges or seeks."""
        self.consume(2, acks)
        self.deliver(unread)
        self.do(self.broker.say_active, False)
        self.pass_time(STEP_S)
        self.reset(back)
        self.broker.owed = self.broker.messages(range(self.broker.cursor + 1, self.broker.length))
        if then == "lost":
            self.lose_connection(False, 0, False)
        elif then == "active":
            self.become_active()

    @precondition(lambda self: self.kind.failover and not self.closed and not self.broker.active)
    @rule()
    def become_active(self) -> None:
        self.do(self.broker.say_active, True)
        self.pass_time(STEP_S)

    @precondition(lambda self: self.settled and not self.consumer.queued)
    @rule()
    def long_silence(self) -> None:
        """The broker delivers everything, so the stall detector has no reason to subscribe again."""
        before = self.consumer.stalls
        for _ in range(MAX_STEPS):
            if not self.do(self.broker.deliver, 100):
                break
            self.take(100)
        self.pass_time(LONG_S)
        if (
            not self.kind.acks_individually and not self.asked_for_redelivery
        ):  # of the last entry, for instance: the watch asks for it once more
            assert self.consumer.stalls == before

    @precondition(lambda self: self.settled)
    @rule()
    def stranded(self) -> None:
        """The broker delivers nothing although it has entries, so the stall detector acts."""
        self.pass_time(LONG_S)

    @precondition(lambda self: self.settled and self.kind.durable)
    @rule(fails=st.sampled_from(["refused", "closed", "lost"]), really=st.integers(0, 9))
    def unsubscribe(self, fails: str, really: int) -> None:
        """Try to delete the subscription, and in one of ten cases succeed: then the consumer must never subscribe again."""
        self.broker.unsubscribe_fails = "" if really == 9 else fails
        if really == 9:
            self.closed = True
            self.run(self.consumer.unsubscribe())
            self.pass_time(LONG_S)
            assert "is deleted" in str(self.consumer.end_error)
            self.run(self.consumer.close())
        else:
            with pytest.raises(ClusterError):
                self.run(self.consumer.unsubscribe())
            self.pass_time(STEP_S)

    @precondition(lambda self: not self.closed)
    @rule(really=st.integers(0, 9))
    def close(self, really: int) -> None:
        """Close the consumer at any moment, in one of ten cases. Later steps do nothing."""
        if really == 9:
            self.closed = True
            self.run(self.consumer.close())
            assert self.consumer.held_bytes == 0

    # --- always, and in the end -------------------------------------------------------------------------------------

    @invariant()
    def it_lives(self) -> None:
        if not hasattr(self, "consumer"):
            return
        for context in self.errors:
            raise context.get("exception") or RuntimeError(context["message"])
        if not self.closed:
            assert self.consumer.end_error is None
            assert self.consumer.held_bytes - self.consumer.incomplete.held_bytes <= MAX_BYTES + BIG + 2 * ENTRY_BYTES
        known = None if self.closed else self.broker.live()
        if known is not None and self.settled and not self.consumer.queued:
            assert known.permits > 0, "it holds nothing, and the broker has nothing to go on"

    def teardown(self) -> None:
        if not hasattr(self, "consumer"):
            return
        try:
            if not self.closed:
                self._left_alone()
                self.closed = True
                self.run(self.consumer.close())
            self.run(self.client.close())
            self.pass_time(STEP_S)
            self.it_lives()
        finally:
            self.patch.stop()
            self.loop.close()

    def _left_alone(self) -> None:
        """Check that a consumer without faults receives all owed entries, and that acknowledging them leaves no backlog."""
        broker, consumer = self.broker, self.consumer
        self.do(broker.answer_held)
        self.pass_time(LONG_S)
        if self.kind.failover and not broker.active:
            self.become_active()
        self.pass_time(ACKS_S)
        for _ in range(MAX_STEPS):
            if not self.do(broker.deliver, 100) and not consumer.queued:
                break
            self.take(100)
        if consumer.incomplete:
            self.pass_time(LONG_S)  # the rest of the message is never sent
            self.take(100)
        owed = {entry for entry in broker.owed if broker.reads or not broker.persistent or entry[0] > broker.cursor}
        assert not owed, f"never came: {owed}"
        if broker.reads or not broker.persistent:
            return
        for entry_id in self.taken if self.kind.acks_individually and self.run_of_last == consumer.generation else ():
            self.do(consumer.acknowledge, entry_id)
        if not self.kind.acks_individually and self.taken:
            for entry_id in max(self.taken), self.taken[-1]:
                self.do(consumer.acknowledge_up_to, entry_id)
        self.pass_time(ACKS_S)
        assert broker.cursor == broker.length - 1, "a backlog is left for ever"


TestConsumerConversation = ConsumerConversation.TestCase
TestConsumerConversation.settings = settings(max_examples=examples(600), stateful_step_count=20, derandomize=True)
"""The same examples in every run, so that a failure is caused by a change. The class below draws others."""


@pytest.mark.thorough
class TestOtherConversations(ConsumerConversation.TestCase):
    settings = settings(max_examples=examples(1500), stateful_step_count=20)
