"""The delivery of a lane under all events in any order, with targets that store, fail, refuse and respond late.

The steps are rules of a state machine; after each step the event loop runs until no callback is left. A send waits in its
outbound, or is on the wire; only a waiting send can be withdrawn.
"""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.errors import ClusterError, DeliveryError, Failure, LaneRevoked
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.budget import Budget
from mqbridge.routing.partitions import Partitioner
from tests.example_counts import examples
from tests.patience import PATIENCE_S
from tests.routing.test_partitions import rule as partition_rule

PARTITION = Partition("a", "t", "0", 0)
LIMIT = 20_000
"""Limit of the budget, in bytes."""
LOOP_ITERATIONS = 40
"""Loop iterations after a step: more than any chain of callbacks and tasks here needs."""


class Lane:
    """Returns given batches, ends as lanes do, and compares acknowledgements with the messages that the targets have stored."""

    def __init__(self, model: "LaneMachine") -> None:
        self.partition, self.revoked, self.caught_up = PARTITION, asyncio.Event(), False
        self.waiting: asyncio.Queue[Batch] = asyncio.Queue()
        self.released = 0
        self.rejected: list[int] = []
        self.acknowledged: list[int] = []
        self._model = model

    async def receive(self) -> Batch:
        if self.revoked.is_set():
            raise LaneRevoked("it was revoked")
        return await self.waiting.get()

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        self._model.check(not self.released, "acknowledged after the release")
        numbers = [batch.first[0] + n for n in (range(batch.count) if indexes is None else indexes)]
        for number in numbers:
            self._model.check(number not in self.acknowledged, f"{number} was acknowledged twice")
            for outbound in self._model.targets:
                self._model.check(number in outbound.stored | self._model.letters.stored, f"{number} is not stored everywhere")
        self.acknowledged += numbers
        if not self._model.individual:
            self._model.check(self.acknowledged == list(range(len(self.acknowledged))), "acknowledged after a gap")
        if self._model.acknowledging_fails:
            raise RuntimeError("the disk is gone")

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        self._model.check(batch.first[0] not in self.rejected, "rejected twice")
        self.rejected.append(batch.first[0])

    async def seek(self, position: tuple[int, ...]) -> None:
        raise AssertionError("nobody seeks")

    async def release(self, deadline: float | None = None) -> None:
        self.released += 1
        self.revoked.set()


class Send:
    """One send: waiting, on the wire, or ended."""

    def __init__(self, partition: int, share: Share) -> None:
        self.partition, self.on_wire = partition, False
        self.numbers = [message.position[0] for message in share.messages]
        self.future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

    def fail(self, kind: Failure, reason: str) -> None:
        self.future.set_result(Receipt(failures=[MessageFailure(n, kind, reason) for n in range(len(self.numbers))]))


class ModelOutbound:
    """An ordered outbound: the sends of a partition end in order, and no send overtakes a failed one."""

    formats = ()

    def __init__(self, model: "LaneMachine", partitions: int) -> None:
        self.partitions, self._model = partitions, model
        self.open: list[Send] = []
        self.stored: set[int] = set()
        self.failed: set[int] = set()
        """Partitions with a failure other than REFUSED: no later send may overtake it."""
        self.forbidden_reason: str | None = None
        """Reason why no more sends are allowed; None while they are."""

    def partition_of(self, key: bytes) -> int:
        return int(key) % self.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        self._model.check(self.forbidden_reason is None, f"something was sent by a lane that {self.forbidden_reason}")
        self._model.check(partition not in self.failed, "a send overtakes a failed one")
        send = Send(partition, share)
        self.open.append(send)
        return send.future

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        for send in [send for send in self.open if send.future in sends and not send.on_wire]:
            self.open.remove(send)
            send.fail(Failure.RETRY, "it was withdrawn")

    def first(self, partition: int) -> Send | None:
        return next((send for send in self.open if send.partition == partition), None)

    def store(self, send: Send, refused: Collection[int] = ()) -> None:
        self.open.remove(send)
        failures = [MessageFailure(n, Failure.REFUSED, "too odd") for n in refused if n < len(send.numbers)]
        self.stored |= {number for n, number in enumerate(send.numbers) if n not in refused}
        send.future.set_result(Receipt([()] * len(send.numbers), failures))

    def fail(self, send: Send, kind: Failure) -> None:
        self.failed.add(send.partition)
        same_partition = [other for other in self.open if other.partition == send.partition]
        for other in same_partition[same_partition.index(send) :]:
            self.open.remove(other)
            if kind is Failure.FATAL:
                other.future.set_exception(ClusterError("no rights", kind))
            else:
                other.fail(kind, "no room")


class LaneMachine(RuleBasedStateMachine):
    """The lane, its targets and its dead letters."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.message_count = 0
        self.acknowledging_fails = False
        self.violations: list[str] = []
        """Violations seen in callbacks, where a failed assertion would go unnoticed."""

    def check(self, holds: bool, problem: str) -> None:
        """Record a violation unless the condition holds."""
        if not holds:
            self.violations.append(problem)

    def settle(self) -> None:
        async def run_iterations() -> None:
            for _ in range(LOOP_ITERATIONS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run_iterations())

    @initialize(individual=st.booleans(), partitions=st.integers(1, 3), outbounds=st.integers(1, 2), letters=st.booleans())
    def begin(self, individual: bool, partitions: int, outbounds: int, letters: bool) -> None:
        self.individual = individual
        self.targets, self.letters = [ModelOutbound(self, partitions) for _ in range(outbounds)], ModelOutbound(self, 1000)
        self.outbounds = [*self.targets, self.letters]

        async def start() -> None:
            self.lane = Lane(self)
            self.budget = Budget(LIMIT)
            made: list[Any] = [
                Target(f"b{n}/t", one, Partitioner(partition_rule("key"), one))  # type: ignore[arg-type]
                for n, one in enumerate(self.targets)
            ]
            dead = DeadLetters("r", self.letters, "c/dead") if letters else None  # type: ignore[arg-type]
            lane_settings = LaneSettings(self.budget, Counters(), dead_letters=dead)
            self.delivery = LaneDelivery(self.lane, made, lane_settings, individual_ack=individual)
            self.task = self.loop.create_task(self.delivery.run())

        self.loop.run_until_complete(start())
        self.settle()

    # --- the source ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.message_count < 60)
    @rule(count=st.integers(1, 5))
    def a_batch_arrives(self, count: int) -> None:
        first = self.message_count
        self.message_count += count

        def decode() -> list[Message]:
            return [Message(b"x", key=str(first + n), position=(first + n,)) for n in range(count)]

        batch = Batch(PARTITION, decode, count=count, size=900, first=(first,), next=(first + count,))
        self.loop.call_soon(self.lane.waiting.put_nowait, batch)
        self.settle()

    @rule()
    def the_lane_is_revoked(self) -> None:
        self.lane.revoked.set()
        self.settle()
        for outbound in self.outbounds:
            outbound.forbidden_reason = "was revoked"
            assert all(send.on_wire for send in outbound.open), "a send that is not on the wire was not withdrawn"

    @rule(soon=st.booleans())
    def the_delivery_is_stopped(self, soon: bool) -> None:
        self.loop.call_soon(self.delivery.stop, self.loop.time() + (0 if soon else 3600))
        self.settle()

    @rule()
    def acknowledgements_begin_to_fail(self) -> None:
        self.acknowledging_fails = True

    # --- the targets --------------------------------------------------------------------------------------------------

    def oldest_sends(self) -> list[tuple[ModelOutbound, Send]]:
        """Return the oldest open send of each partition of each outbound."""
        found = [(one, one.first(n)) for one in self.outbounds for n in range(one.partitions)]
        return [(one, send) for one, send in found if send is not None]

    @precondition(lambda self: self.oldest_sends())
    @rule(data=st.data())
    def sends_go_on_the_wire(self, data: st.DataObject) -> None:
        outbound = data.draw(st.sampled_from(self.outbounds))
        for send in outbound.open[: data.draw(st.integers(0, 4))]:
            send.on_wire = True

    @precondition(lambda self: self.oldest_sends())
    @rule(data=st.data())
    def a_send_is_stored(self, data: st.DataObject) -> None:
        outbound, send = data.draw(st.sampled_from(self.oldest_sends()))
        self.loop.call_soon(outbound.store, send)
        self.settle()

    @precondition(lambda self: self.oldest_sends())
    @rule(data=st.data(), refused=st.sets(st.integers(0, 4), min_size=1))
    def some_messages_of_a_send_are_refused(self, data: st.DataObject, refused: set[int]) -> None:
        outbound, send = data.draw(st.sampled_from(self.oldest_sends()))
        self.loop.call_soon(outbound.store, send, refused)
        self.settle()

    @precondition(lambda self: self.oldest_sends())
    @rule(data=st.data(), kind=st.sampled_from([Failure.RETRY, Failure.FATAL]))
    def a_send_fails(self, data: st.DataObject, kind: Failure) -> None:
        outbound, send = data.draw(st.sampled_from(self.oldest_sends()))
        self.loop.call_soon(outbound.fail, send, kind)
        self.settle()

    @precondition(lambda self: self.oldest_sends())
    @rule(data=st.data())
    def a_receipt_arrives_in_the_loop_iteration_of_a_revocation(self, data: st.DataObject) -> None:
        outbound, send = data.draw(st.sampled_from(self.oldest_sends()))
        self.loop.call_soon(outbound.store, send)
        self.loop.call_soon(self.lane.revoked.set)
        self.settle()

    @precondition(lambda self: self.message_count < 60 and self.oldest_sends())
    @rule(data=st.data())
    def a_batch_arrives_in_the_loop_iteration_of_a_failure(self, data: st.DataObject) -> None:
        outbound, send = data.draw(st.sampled_from(self.oldest_sends()))
        # One loop iteration after the batch is put: the lane would send it before it learns of the failure, if nothing prevented
        # that.
        self.loop.call_soon(self.loop.call_soon, outbound.fail, send, Failure.RETRY)
        self.a_batch_arrives(2)

    # --- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def bytes_in_flight_are_bounded_and_accounted_for(self) -> None:
        if not hasattr(self, "budget"):
            return
        assert 0 <= self.budget.used <= LIMIT
        if any(outbound.open for outbound in self.outbounds):
            assert self.budget.used > 0, "bytes were released while an outbound may hold them"
        if self.task.done() and not any(outbound.open for outbound in self.outbounds):
            assert self.budget.used == 0, "bytes were not released"

    @invariant()
    def no_rule_was_violated(self) -> None:
        assert self.violations == []

    @invariant()
    def an_ended_lane_is_released_once(self) -> None:
        if hasattr(self, "task") and self.task.done():
            assert self.lane.released == 1
            assert self.delivery.in_flight_batches == 0
            assert not (set(self.lane.rejected) & set(self.lane.acknowledged)) or self.individual or self.acknowledging_fails
            error = self.task.exception()
            assert error is None or isinstance(error, DeliveryError | ClusterError | RuntimeError)

    def teardown(self) -> None:
        if not hasattr(self, "task"):
            self.loop.close()
            return
        self.loop.call_soon(self.delivery.stop, self.loop.time())
        self.settle()
        with contextlib.suppress(Exception):
            self.loop.run_until_complete(asyncio.wait_for(self.task, PATIENCE_S))
        self.settle()
        for outbound in self.outbounds:
            assert all(send.on_wire for send in outbound.open), "an ended lane left an unsent send"
            for send in list(outbound.open):  # late receipts
                outbound.store(send)
        self.settle()
        assert self.violations == []
        assert self.budget.used == 0
        assert self.lane.released == 1
        self.loop.close()


LaneMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, derandomize=True)
TestLane = LaneMachine.TestCase
