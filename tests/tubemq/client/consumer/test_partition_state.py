"""A held partition against a model of its Broker: whatever is lost, late or refused, nothing is skipped and nothing hangs.

Requests wait until a rule answers, loses or refuses them. An abandoned request may still reach the Broker at any later time.
"""

import asyncio
from datetime import UTC
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from mqbridge.errors import ClusterError, ConnectionLost, GapError, LaneRevoked, LocalProtocolError, MqbridgeError, RequestTimeout
from mqbridge.message import Batch, Partition
from mqbridge.tubemq.adapter.inbound import TubeMQLane
from mqbridge.tubemq.client.consumer import pack_reader, partition_registration, read_history
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.partition_state import (
    CONFIRMED,
    DELIVERED,
    FETCHING,
    FORGOTTEN,
    LEASE_TABLE,
    PACK_TABLE,
    READING,
    RELEASED,
    RELEASING,
    REVOKED,
    STOPPED,
    Lease,
    PackState,
    PartitionState,
)
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from tests.example_counts import examples
from tests.patience import PATIENCE_S
from tests.tubemq.client.fakes import REF, MasterScript
from tests.tubemq.client.model import STEP, ModelBroker, refusal
from tests.tubemq.client.quick import shorten_pauses

GROUP, KEY = "g1", ("g1", "demo", 0)
MESSAGES = 30
TURNS = 12
"""Loop iterations after which all tasks wait for the Broker."""
DRAIN = 300
"""Requests that suffice to read everything at the end of a run."""


OUTAGE = 4
"""Requests that fail in a row: more than REGISTER_ATTEMPTS, which the test lowers to 2."""
KEEP_S = 3600.0
"""How long a wanted partition is kept: longer than a run."""
LUCK = st.integers(0, 3)
"""Rare rules do something only if this is 0: otherwise runs would end before anything could go wrong."""


class Wire:
    """The connection: `waiting` are requests in the order of sending, `late` those that were abandoned."""

    def __init__(self, broker: ModelBroker) -> None:
        self.number = 1
        self.waiting: list[tuple[int, bytes, asyncio.Future[bytes]]] = []
        self.late: list[tuple[int, bytes]] = []
        self._handlers: dict[int, Any] = {
            rpc.PARTITION_REGISTER: (b.RegisterRequestC2B, broker.register),
            rpc.GET: (b.GetMessageRequestC2B, broker.get),
            rpc.COMMIT: (b.CommitOffsetRequestC2B, broker.commit),
        }

    async def connect(self) -> None:
        """Do nothing: there is always a connection."""

    def restart(self) -> None:
        """The Broker restarts: the client needs another connection, and requests that have not arrived never do."""
        self.number += 1
        self.late.clear()

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting.append((method, body, future))
        try:
            return await future
        except asyncio.CancelledError:
            self.forget(future)
            raise

    async def call(self, service: int, method: int, body: Any, answer: Any) -> Any:
        return rpc.parse(answer, await self.request(service, method, body.SerializeToString()))

    def carry_out(self, method: int, body: bytes) -> bytes:
        kind, handler = self._handlers[method]
        return bytes(handler(kind.FromString(body)).SerializeToString())

    def client_id(self, method: int, body: bytes) -> str:
        return str(self._handlers[method][0].FromString(body).clientId)

    def forget(self, future: "asyncio.Future[bytes]") -> None:
        for entry in self.waiting:
            if entry[2] is future:
                self.waiting.remove(entry)
                self.late.append(entry[:2])
                return


class Context:
    """The context of a partition whose Master always responds."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.membership = MemberIdentity(MasterScript(), GROUP, ["demo"], {})  # type: ignore[arg-type]
        self.membership.client_id = "c1"
        self.budget = ReadBudget(1 * GET_BYTES)
        self.strayed = False

    @property
    def master_seen_at(self) -> float:
        return asyncio.get_running_loop().time()

    def connection_for(self, ref: Any) -> Any:
        return self.wire

    def partition_ended(self, partition: HeldPartition) -> None:
        self.strayed |= partition.has_abandoned_requests  # the consumer asks only once, at the end of the partition


class PartitionMachine(RuleBasedStateMachine):
    """One group on one partition. `low` is the first unacknowledged message; every pack has to begin there or before."""

    lag_bytes = 0
    has_siblings = True
    """Whether other partitions store messages in the same index."""
    by_lane = False
    """Whether the gateway's lane reads, settles and seeks; otherwise the partition itself does."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.broker = ModelBroker()
        self.broker.lag_bytes = self.lag_bytes
        self.send(MESSAGES)
        self.low = 0
        self.may_be_moved = False
        """Whether the Broker's offset may be ahead of `low`: after a seek, a commit without response or a clean shutdown."""
        self.heartbeats: list[tuple[HeldPartition, int, int | None]] = []
        self.wire = Wire(self.broker)
        self.context = self.run(self.new_context())
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.pack: Pack | None = None
        self.pack_end = 0
        """Index of the entry after the last message of `pack`."""
        self.first_read = 0
        """Index of the first entry that this registration reads: the reader knows nothing of what was before."""
        self.batch: Batch | None = None
        self.strayed = self.was_reset = False
        self.moved_to = 0
        """The message to which others moved the group, until a message from there on is read."""
        self.begin: tuple[int, int] | None = None
        """A position for a seek before anything is read, as from a checkpoint."""
        self.assign()

    async def new_context(self) -> Context:
        return Context(self.wire)

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def go_on(self) -> None:
        """Let the client work until it waits for the Broker, and handle the tasks that are done."""

        async def turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.run(turns())
        for name, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[name]
                getattr(self, f"{name}_done")(task)
        if not self.tasks.keys() & {"register", "fetch", "seek", "commit"} and self.pack is None and self.is_readable:
            self.start("fetch", self.lane.receive() if self.by_lane else self.partition.fetch())

    def start(self, name: str, coroutine: Any) -> None:
        self.tasks[name] = self.loop.create_task(coroutine)
        self.go_on()

    @property
    def is_readable(self) -> bool:
        return self.partition.state.lease in (READING, FORGOTTEN)

    def assign(self) -> None:
        """The Master assigns the partition, for the first time or again."""

        async def take() -> HeldPartition:
            return HeldPartition(self.context, REF, fresh_id=self.strayed, is_alone=lambda: not self.has_siblings)

        self.partition = self.run(take())
        self.lane = TubeMQLane(self.partition, Partition("c", "demo", REF.name, 0), UTC)
        self.start("register", self.partition.register(0))

    # --- results of tasks --------------------------------------------------------------------------------------------

    def register_done(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        assert error is None or isinstance(error, ClusterError)
        if error is None:
            self.low = max(self.low, task.result().currOffset // STEP)
            self.first_read = self.low
        if error is None and self.begin is not None and not self.partition.state.is_over:
            self.move_to(*self.begin)

    def move_to(self, target: int, left_out: int) -> None:
        self.target, self.left_out, self.begin, self.may_be_moved = target, left_out, None, True
        self.start("seek", self.seeking())

    def fetch_done(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, GapError):
            is_lost = self.broker.deleted.get(("demo", 0), 0) > self.next_message * STEP
            assert is_lost or self.was_reset, "a gap where nothing was lost"
            assert self.partition.state.lease is STOPPED
        elif error is not None:
            assert isinstance(error, LaneRevoked)
        else:
            found = task.result()
            pack: Pack = found.handle if self.by_lane else found
            begin = pack.offset // STEP
            indexes = [index for index in range(begin, self.end) if self.stored[index] is not None][: len(pack.messages)]
            assert [message.messageId for message in pack.messages] == [self.stored[index].messageId for index in indexes]
            left_out = found.first[1] if self.by_lane else 0
            assert indexes[left_out] <= self.next_message, f"messages {self.low} to {indexes[left_out] - 1} were skipped"
            self.batch = found if self.by_lane else None
            if indexes[left_out] >= self.moved_to:
                self.moved_to = 0
            self.pack_end = indexes[-1] + 1
            self.pack = pack

    def commit_done(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is None:
            self.low = max(task.result() // STEP, self.moved_to)
            self.pack = None
        elif not task.cancelled():
            assert isinstance(task.exception(), (ClusterError, LaneRevoked))

    def late_commit_done(self, task: "asyncio.Task[Any]") -> None:
        assert task.exception() is None

    def seek_done(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled() or task.exception() is not None:
            assert task.cancelled() or isinstance(task.exception(), (ClusterError, LaneRevoked))
            return
        # A position beyond the end starts at the end, and new messages there are not skipped.
        self.low, self.pack, self.moved_to = min(self.target + self.left_out, self.end), None, 0
        self.first_read = self.low

    def release_done(self, task: "asyncio.Task[Any]") -> None:
        assert task.exception() is None
        assert self.partition.state.is_over

    revoke_done = want_done = release_done

    # --- the network --------------------------------------------------------------------------------------

    @property
    def stored(self) -> list[Any]:
        return self.broker.stored["demo", 0]

    @property
    def end(self) -> int:
        return len(self.stored)

    @property
    def next_message(self) -> int:
        """Index of the first unacknowledged message; the end if there is none."""
        return next((index for index in range(self.low, self.end) if self.stored[index] is not None), self.end)

    @precondition(lambda self: self.wire.waiting)
    @rule(most=st.integers(1, 4))
    def answers(self, most: int) -> None:
        for _ in range(most):
            if self.wire.waiting:
                self.answer()

    def answer(self) -> None:
        method, body, future = self.wire.waiting.pop(0)
        data = self.wire.carry_out(method, body)
        if not future.done():
            future.set_result(data)
        self.go_on()

    @precondition(lambda self: self.wire.waiting)
    @rule(is_cut=st.booleans(), arrives=st.sampled_from(["never", "now", "later"]))
    def give_up(self, is_cut: bool, arrives: str) -> None:
        method, body, future = self.wire.waiting.pop(0)
        if arrives == "now":
            self.wire.carry_out(method, body)
        elif arrives == "later":
            self.wire.late.append((method, body))
        future.set_exception(ConnectionLost("cut") if is_cut else RequestTimeout("silence"))
        self.go_on()

    @precondition(lambda self: self.wire.waiting)
    @rule(luck=LUCK)
    def outage(self, luck: int) -> None:
        """All requests fail, for longer than a seek or a registration retries."""
        for _ in range(0 if luck else OUTAGE):
            if self.wire.waiting:
                self.give_up(is_cut=True, arrives="never")

    @precondition(lambda self: self.wire.late)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        self.wire.carry_out(*self.wire.late.pop(data.draw(st.integers(0, len(self.wire.late) - 1))))

    @precondition(lambda self: self.wire.waiting)
    @rule(code=st.sampled_from([500, 503, 301, 403]), is_carried_out=st.booleans(), luck=LUCK)
    def refuse(self, code: int, is_carried_out: bool, luck: int) -> None:
        if luck:
            return
        method, body, future = self.wire.waiting.pop(0)
        if code == 500 and is_carried_out:
            self.wire.carry_out(method, body)
        future.set_result(refusal(method, code))
        self.go_on()

    @precondition(lambda self: "fetch" in self.tasks)
    @rule()
    def cancel_fetch(self) -> None:
        self.tasks["fetch"].cancel()
        self.go_on()

    # --- the Broker ---------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 7))
    def send(self, count: int) -> None:
        for _ in range(count):
            body = b"%d" % self.end
            self.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=body, flag=0))

    @precondition(lambda self: self.has_siblings)
    @rule(count=st.integers(1, 7))
    def send_to_siblings(self, count: int) -> None:
        self.broker.store_foreign("demo", 0, count)

    @precondition(
        lambda self: not self.lag_bytes and "seek" not in self.tasks and not self.by_lane and "register" not in self.tasks
    )
    @rule(data=st.data(), luck=st.integers(0, 1))
    def kill(self, data: st.DataObject, luck: int) -> None:
        """The Broker is killed before its memory is on disk: new messages get the offsets of the lost ones.

        The group's offset is written more often; it may lie behind the lost messages.
        """
        first = max(self.first_read, self.broker.deleted.get(("demo", 0), 0) // STEP)
        if luck or first > self.end:
            return
        kept = data.draw(st.integers(first, max(first, min(self.low, self.end))))
        self.lose_from(kept, data.draw(st.booleans()))

    def lose_from(self, kept: int, sends: bool) -> None:
        """Lose the entries from `kept` on. With `sends`, their offsets have new messages before a consumer reaches the Broker."""
        lost = self.end - kept
        self.broker.lose("demo", 0, kept)
        self.broker.forget()
        self.wire.restart()
        self.low, self.pack_end = min(self.low, kept), min(self.pack_end, kept)
        self.may_be_moved = True
        self.send(lost + 5 if sends else 0)

    @precondition(lambda self: self.may_restart)
    @rule(in_order=st.booleans(), luck=LUCK)
    def restart(self, in_order: bool, luck: int) -> None:
        if luck:
            return
        self.wire.restart()
        if in_order:
            self.may_be_moved = True
            self.broker.restart_cleanly()
        else:
            self.broker.forget()

    @property
    def may_restart(self) -> bool:
        """Whether a restart is allowed: after it, the end of a confirmed pack is unknown, so deletions would not be noticed."""
        state = self.partition.state
        before = state._pack_before_get if state.pack_state is FETCHING else state.pack_state
        return not self.lag_bytes or before in (PackState.NONE, PackState.REJECTED)

    @rule(data=st.data(), luck=LUCK)
    def reset_from_outside(self, data: st.DataObject, luck: int) -> None:
        """An administrator moves the group back or forth."""
        if luck or KEY not in self.broker.confirmed:
            return
        to = data.draw(st.integers(self.broker.deleted.get(("demo", 0), 0) // STEP, self.end))
        self.broker.confirmed[KEY] = to * STEP
        self.broker.delta.pop(KEY, None)
        self.moved(to)

    @precondition(lambda self: self.partition.state.lease in (READING, STOPPED))
    @rule(count=st.integers(0, 7), luck=LUCK)
    def taken_by_another(self, count: int, luck: int) -> None:
        """Our lease ended, and another member has read and confirmed some messages."""
        if luck:
            return
        self.broker.owners[KEY] = "another"
        self.broker.delta.pop(KEY, None)
        self.broker.confirmed[KEY] = min(self.broker.confirmed.get(KEY, 0) + count * STEP, self.end * STEP)
        self.moved(self.broker.confirmed[KEY] // STEP)

    def moved(self, to: int) -> None:
        self.low = max(self.low, to)
        self.moved_to = to
        self.may_be_moved = self.was_reset = True

    @precondition(lambda self: self.lag_bytes)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        before = self.broker.deleted.get(("demo", 0), 0) // STEP
        self.broker.deleted["demo", 0] = STEP * data.draw(st.integers(before, self.end))

    @precondition(lambda self: self.partition.state.is_registered)
    @rule()
    def heartbeat(self) -> None:
        """Send a heartbeat, which the Broker handles at once; its response arrives in `heartbeat_answered`."""
        partition, owner = self.partition, self.broker.owners.get(KEY)
        code = None if owner == partition.client_id else 411 if owner is None else 412
        self.heartbeats.append((partition, partition.state.generation, code))

    @precondition(lambda self: self.heartbeats)
    @rule()
    def heartbeat_answered(self) -> None:
        partition, run, code = self.heartbeats.pop(0)
        if code is not None and partition is self.partition:

            async def answer() -> None:
                partition.on_heartbeat_failure(code, run)

            self.run(answer())
            self.go_on()

    # --- the consumer -------------------------------------------------------------------------------------

    @precondition(lambda self: self.pack is not None and "commit" not in self.tasks)
    @rule(is_confirmed=st.booleans(), is_late=st.booleans())
    def settle(self, is_confirmed: bool, is_late: bool = False) -> None:
        """Confirm or reject the pack; before that, late requests may arrive, which is the most harmful moment."""
        assert self.pack is not None
        while is_late and self.wire.late:
            self.wire.carry_out(*self.wire.late.pop())
        if self.partition.pack is self.pack:
            if is_confirmed:
                self.low = max(self.pack_end, self.moved_to)
            self.settle_pack(is_confirmed)
        self.pack = None
        self.go_on()

    def settle_pack(self, is_confirmed: bool) -> None:
        if self.batch is None:
            (self.partition.confirm if is_confirmed else self.partition.reject)()
        else:
            (self.lane.acknowledge if is_confirmed else self.lane.reject)(self.batch)

    @precondition(lambda self: not self.by_lane and self.partition.pack is self.pack is not None and not self.tasks)
    @rule()
    def fetch_again(self) -> None:
        """Fetch without settling the pack: the same pack or a gap must come."""
        assert self.pack is not None
        self.low = max(min(self.low, self.pack.offset // STEP), self.moved_to)
        self.pack = None
        self.go_on()

    @precondition(
        lambda self: (
            not self.by_lane and self.partition.pack is self.pack is not None and not self.tasks.keys() & {"commit", "seek"}
        )
    )
    @rule()
    def commit(self) -> None:
        self.may_be_moved = True
        self.start("commit", self.partition.commit(consumed=True))
        if "commit" in self.tasks or self.pack is None:
            return
        self.pack = None  # it failed: the next fetch returns the pack again

    @precondition(lambda self: self.pack is not None and "commit" not in self.tasks and self.partition.pack is not self.pack)
    @rule()
    def forget_pack(self) -> None:
        """Drop a pack that the partition no longer has: a commit failed, or the partition was revoked."""
        self.pack = None
        self.go_on()

    @precondition(lambda self: self.partition.state.pack_state is CONFIRMED and "late_commit" not in self.tasks)
    @rule()
    def commit_late(self) -> None:
        self.start("late_commit", self.partition.commit_late(float("inf")))

    @precondition(
        lambda self: not self.tasks.keys() & {"register", "fetch", "commit", "seek"} and not self.partition.state.is_over
    )
    @rule(data=st.data(), luck=LUCK)
    def seek(self, data: st.DataObject, luck: int) -> None:
        if luck:
            return
        self.move_to(*self.position(data))

    def position(self, data: st.DataObject) -> tuple[int, int]:
        """Draw an available message or one up to 3 beyond the end; a lane's position may leave out up to 6 messages after it."""
        first = self.broker.deleted.get(("demo", 0), 0) // STEP
        begin, end = data.draw(
            st.sampled_from([(first, self.end), (max(first, self.end - 3), self.end), (self.end, self.end + 3)])
        )
        return data.draw(st.integers(begin, end)), data.draw(st.integers(0, 6)) if self.by_lane else 0

    def seeking(self) -> Any:
        if self.by_lane:
            return self.lane.seek((self.target * STEP, self.left_out))
        return self.partition.seek(self.target * STEP)

    @precondition(lambda self: not self.tasks.keys() & {"release", "revoke", "register"} and not self.partition.state.is_over)
    @rule(luck=LUCK, is_asked_for=st.booleans())
    def release(self, luck: int, is_asked_for: bool = True) -> None:
        """Release the partition, or revoke it as for the Master, at any step."""
        if luck:
            return
        if is_asked_for:
            self.start("release", self.partition.release())
        else:
            self.start("revoke", self.partition.revoke())

    @precondition(
        lambda self: not self.tasks.keys() & {"release", "revoke", "register", "want"} and not self.partition.state.is_over
    )
    @rule(luck=LUCK)
    def want(self, luck: int) -> None:
        """The Master wants the partition for another member; it is kept until it is released."""
        if not luck:
            self.start("want", self.partition.revoke(KEEP_S))

    @precondition(lambda self: "register" in self.tasks)
    @rule(luck=LUCK)
    def close_while_it_is_taken(self, luck: int) -> None:
        if luck:
            return
        self.tasks["register"].cancel()
        self.go_on()
        if self.partition.has_abandoned_requests:
            self.context.strayed = True
            self.start("release", self.partition.release())

    @precondition(lambda self: self.partition.state.is_over and not self.tasks)
    @rule()
    def use_an_ended_partition(self) -> None:
        """Calls on an ended partition raise LaneRevoked and send no request."""
        for attempt in (self.partition.seek(0), self.partition.fetch(), self.partition.poll(), self.lane.receive()):
            task = self.loop.create_task(attempt)
            self.go_on()
            assert task.done()
            assert isinstance(task.exception(), LaneRevoked)
        assert not self.wire.waiting

    @precondition(lambda self: self.is_idle)
    @rule(data=st.data())
    def assign_again(self, data: st.DataObject) -> None:
        if self.by_lane:
            self.begin = self.position(data)
        self.take_over()

    @property
    def is_idle(self) -> bool:
        return not self.tasks and self.partition.state.lease in (RELEASED, Lease.NEW)

    def take_over(self) -> None:
        """Acquire the partition after all other leases have ended; unconfirmed messages are read again."""
        self.strayed |= self.context.strayed if self.partition.state.lease is RELEASED else self.partition.has_abandoned_requests
        if self.broker.owners.pop(KEY, None) is not None:
            self.broker.delta.pop(KEY, None)
        if self.may_be_moved:
            self.low = max(self.low, self.broker.confirmed.get(KEY, 0) // STEP)
        self.pack = None
        self.assign()

    # --- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_confirmed_that_was_not_acknowledged(self) -> None:
        if not self.may_be_moved and not self.broker.deleted and "commit" not in self.tasks:
            assert self.broker.confirmed.get(KEY, 0) <= self.low * STEP

    @invariant()
    def waiters_for_the_pack_are_woken(self) -> None:
        state = self.partition.state
        assert state.settled.is_set() == (state.pack_state not in (FETCHING, DELIVERED))
        assert self.partition.revoked.is_set() == state.is_over
        assert self.partition.releasing.is_set() == (state.lease in (RELEASING, REVOKED, RELEASED))

    @invariant()
    def late_requests_have_other_client_ids(self) -> None:
        """Late requests have ids no longer in use, unless the state counts them as abandoned requests of this registration."""
        state = self.partition.state
        if state.lease is not RELEASED and not state.abandoned:
            assert self.partition.client_id not in [self.wire.client_id(*request) for request in self.wire.late]

    def teardown(self) -> None:
        try:
            self.read_all()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.run(asyncio.sleep(0))
            self.run(asyncio.sleep(0))
            self.loop.close()

    def read_all(self) -> None:
        """From here on all requests are answered: read everything, and fail if a message is missing."""
        self.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"last", flag=0))
        for _ in range(DRAIN):
            state = self.partition.state
            if self.next_message >= self.end:
                break
            if self.pack is not None and "commit" not in self.tasks:
                self.settle(is_confirmed=True)
            elif self.wire.waiting:
                self.answer()
            elif state.lease is STOPPED and not self.tasks:
                assert isinstance(state.stop_reason, GapError)
                assert state.stop_reason.resume is not None
                resume = state.stop_reason.resume[0] // STEP
                if self.broker.owners.get(KEY, self.partition.client_id) != self.partition.client_id:
                    self.broker.owners.pop(KEY)  # the lease of a late registration ends without heartbeats
                    self.broker.delta.pop(KEY, None)
                self.move_to(resume, 0)
            elif self.is_idle:
                self.take_over()
            elif state.lease is RELEASING and "release" not in self.tasks:
                self.release(luck=0)
            else:
                self.go_on()
        else:
            raise AssertionError(
                f"stuck at {self.low} of {self.end}: {state.lease} {state.pack_state} {state.abandoned} {self.tasks}"
            )


class FarBehind(PartitionMachine):
    """Retention deletes unread messages: every loss is noticed."""

    lag_bytes = pack_reader.FAR_BEHIND_BYTES + 1
    has_siblings = False


class ByLane(PartitionMachine):
    """The gateway's lane reads, from positions inside packs."""

    by_lane = True
    has_siblings = False

    @initialize(data=st.data())
    def begin_somewhere(self, data: st.DataObject) -> None:
        self.begin = self.position(data)


@pytest.mark.parametrize("machine", [PartitionMachine, FarBehind, ByLane], ids=["near the end", "far behind", "by lane"])
def test_no_message_is_skipped_when_any_request_is_lost(machine: type[PartitionMachine], monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.0)
    monkeypatch.setattr(partition_registration, "REGISTER_ATTEMPTS", 2)  # five failures in a row would hardly ever be drawn
    monkeypatch.setattr(pack_reader, "COMMIT_AFTER_S", 0.0)
    monkeypatch.setattr(read_history, "SPACING_S", 0.0)  # every pack is remembered: runs take no time
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(100), stateful_step_count=50))


@pytest.mark.parametrize("kept", [3, 7, 12, 15])
def test_messages_at_offsets_that_a_killed_broker_had_lost_are_read(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's position is on disk, and lies behind them."""
    shorten_pauses(monkeypatch, 0.0)
    monkeypatch.setattr(read_history, "SPACING_S", 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    for _ in range(3):
        while machine.pack is None:
            machine.answer()
        machine.settle(is_confirmed=True)
    machine.answer()
    machine.lose_from(kept, sends=True)
    machine.teardown()  # fetch_done compares each pack with what the Broker has


def test_a_late_get_is_refused_by_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would confirm the unsettled pack, and our own confirmation would then confirm the next one, which no one has read."""
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    machine.answer()
    machine.settle(is_confirmed=True)
    machine.give_up(is_cut=False, arrives="later")
    for _ in range(2):
        while machine.pack is None:
            machine.answer()
        machine.settle(is_confirmed=True, is_late=True)  # fetch_done compares each pack with the earlier ones
    assert not machine.wire.late
    machine.teardown()


def test_a_late_registration_is_refused_by_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would move the reader of a later registration back to the start."""
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    machine.give_up(is_cut=False, arrives="later")
    while machine.pack is None:
        machine.answer()
    machine.settle(is_confirmed=True)
    machine.commit_late()
    while machine.wire.waiting and machine.partition.state.safe_offset == 0:
        machine.answer()
    owner, confirmed, delta = (dict(of) for of in (machine.broker.owners, machine.broker.confirmed, machine.broker.delta))
    machine.wire.carry_out(*machine.wire.late.pop())
    assert (machine.broker.owners, machine.broker.confirmed, machine.broker.delta) == (owner, confirmed, delta)
    machine.teardown()


def test_late_requests_of_an_earlier_assignment_confirm_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the member's own id, under which the partition was held before it was fenced; that id is not used again."""
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    machine.answer()
    machine.settle(is_confirmed=True)
    machine.give_up(is_cut=False, arrives="later")  # a get that confirms
    while machine.pack is None:
        machine.answer()
    machine.pack = None
    machine.release(luck=0)
    while not machine.is_idle:
        machine.answer()
    machine.take_over()
    while machine.pack is None:
        machine.answer()
    machine.settle(is_confirmed=True, is_late=True)
    while machine.pack is None:  # fetch_done compares it with the acknowledged messages
        machine.answer()
    machine.teardown()


def test_a_late_get_that_outlived_its_release_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The get was in flight at the release, and is abandoned after it."""
    shorten_pauses(monkeypatch, 0.0)
    monkeypatch.setattr("mqbridge.tubemq.client.consumer.partition.COMMIT_POSITION_S", 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    machine.answer()
    machine.settle(is_confirmed=True)
    machine.release(luck=0)
    method, body, future = machine.wire.waiting.pop(1)
    assert method == rpc.PARTITION_REGISTER
    future.set_result(machine.wire.carry_out(method, body))
    machine.go_on()
    machine.give_up(is_cut=False, arrives="later")  # the get, which confirms
    assert machine.is_idle
    machine.take_over()
    while machine.pack is None:
        machine.answer()
    machine.settle(is_confirmed=True, is_late=True)
    while machine.pack is None:  # fetch_done compares it with the acknowledged messages
        machine.answer()
    machine.teardown()


def test_a_late_unregistration_does_not_end_the_next_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late unregistration would end the next assignment, and could confirm its unsettled pack."""
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    machine.answer()
    machine.settle(is_confirmed=True)
    machine.release(luck=0)
    machine.answer()  # the get that was in flight
    machine.give_up(is_cut=False, arrives="later")
    assert machine.is_idle
    machine.take_over()
    while machine.pack is None:
        machine.answer()
    while machine.wire.late:
        machine.wire.carry_out(*machine.wire.late.pop())
    assert machine.broker.owners[KEY] == machine.partition.client_id
    assert machine.broker.confirmed[KEY] <= machine.low * STEP
    machine.teardown()


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_pack_that_arrives_when_a_partition_is_given_up_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    """Nobody has seen it. Before it, the Broker had moved the group of the idle partition on by itself."""
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    while machine.next_message < machine.end or not (machine.partition.state.has_moved and machine.wire.waiting):
        if machine.pack is not None:
            machine.settle(is_confirmed=True)
        elif machine.wire.waiting:
            machine.answer()
        else:
            machine.go_on()
    machine.send(3)
    if is_wanted:
        machine.want(luck=0)
        machine.answer()  # the get that was in flight
        assert (machine.partition.state.lease, machine.pack) == (RELEASING, None)
    machine.release(luck=0)
    while not machine.is_idle:
        machine.answer()
    assert machine.broker.confirmed[KEY] <= machine.low * STEP
    machine.teardown()


def test_a_wanted_partition_confirms_the_pack_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    machine.answer()
    assert machine.pack is not None
    machine.want(luck=0)
    assert (machine.partition.state.lease, machine.partition.state.is_registered) == (RELEASING, True)
    assert not machine.partition.revoked.is_set()
    machine.settle(is_confirmed=True)
    machine.commit_late()
    while machine.wire.waiting:
        machine.answer()
    assert machine.broker.confirmed[KEY] == machine.low * STEP > 0
    assert not machine.partition.revoked.is_set(), "the commit does not end the wait"
    machine.teardown()


def test_a_wanted_partition_whose_registration_is_lost_is_revoked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Broker that shut down in order counts the pack in flight as consumed: the release sets the group back soon."""
    shorten_pauses(monkeypatch, 0.0)
    machine = PartitionMachine()
    machine.answer()  # the registration
    machine.answer()
    machine.want(luck=0)
    machine.wire.restart()
    machine.broker.restart_cleanly()
    machine.may_be_moved = True
    machine.heartbeat()
    machine.heartbeat_answered()
    assert machine.partition.revoked.is_set()
    machine.settle(is_confirmed=False)
    while not machine.is_idle:
        machine.answer()
    assert machine.partition.unsettled is not None
    assert machine.partition.unsettled.offset == 0
    machine.broker.confirmed[KEY] = 0  # as `HeldPartitions` does then
    machine.teardown()


def test_only_a_registered_partition_is_kept() -> None:
    state = PartitionState("demo")
    assert not state.want()
    state.on_registered(0, 100, None)
    state.on_registration_forgotten(state.generation)
    assert not state.want()
    state.on_registered(0, 100, None)
    assert state.want()
    assert (state.may_get(), state.revoked.is_set()) == (False, False)
    assert not state.want()


def test_the_tables_name_known_states_only() -> None:
    for table, states in ((LEASE_TABLE, Lease), (PACK_TABLE, PackState)):
        for event, row in table.items():
            assert set(row) <= set(states), event
            assert set(row.values()) <= set(states), event


def test_transitions_that_are_not_in_the_tables_are_refused() -> None:
    state = PartitionState("demo 1:0")
    with pytest.raises(LocalProtocolError, match="before the partition is registered"):
        state.on_get_sent()
    state.on_registered(0, 100, None)
    for event in (state.on_no_data, state.confirm, state.reject, state.on_get_refused):
        with pytest.raises(LocalProtocolError):
            event()
    assert not state.on_get_sent()
    with pytest.raises(LocalProtocolError):
        state.on_get_sent()
    state.on_get_failed(is_abandoned=True)
    with pytest.raises(LocalProtocolError, match="registered again"):
        state.on_get_sent()
    with pytest.raises(LocalProtocolError):
        state.on_data(0, 100, messages=1)  # the late response of the abandoned get
    assert FETCHING is not state.pack_state


@pytest.mark.parametrize(
    ("settle", "after"),
    [(None, PackState.REJECTED), ("reject", PackState.REJECTED), ("confirm", CONFIRMED)],
    ids=["never settled", "rejected", "confirmed"],
)
def test_a_refused_get_keeps_the_confirmation_of_the_previous_pack(settle: str | None, after: PackState) -> None:
    """An unsettled pack counts as rejected once the next get is sent, also if that get is refused; each get is refused once."""
    state = PartitionState("demo 1:0")
    state.on_registered(0, 100, None)
    state.on_get_sent()
    state.on_data(0, 100, messages=1)
    if settle is not None:
        getattr(state, settle)()
    assert state.on_get_sent() == (settle == "confirm")
    with pytest.raises(LocalProtocolError, match="'get sent' cannot happen"):
        state.on_get_sent()
    state.on_get_refused()
    assert state.pack_state is after
    with pytest.raises(LocalProtocolError, match="'refused after"):
        state.on_get_refused()


def test_a_gap_ends_only_with_a_seek_or_the_partition() -> None:
    state = PartitionState("demo 1:0", lambda: True)
    state.on_registered(280, 1000, 28)
    assert (state.lease, state.is_registered) == (STOPPED, True)
    with pytest.raises(GapError, match="offset 28 was expected, but the Broker continued at offset 280"):
        state.raise_if_stopped()
    state.on_registration_abandoned()  # a seek that failed
    with pytest.raises(GapError):
        state.raise_if_stopped()
    state.revoke(LaneRevoked("taken away"))
    assert state.must_unregister
    with pytest.raises(LaneRevoked):
        state.raise_if_stopped()
    with pytest.raises(MqbridgeError, match="taken away"):
        state.on_get_sent()


async def test_a_revocation_wakes_all_tasks_that_wait() -> None:
    """Not only the release that follows: until then the delivered pack may still be confirmed."""
    state = PartitionState("demo")

    async def wait() -> None:
        async with state.raise_on_revocation():
            await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(wait()), asyncio.ensure_future(state.sleep_unless_revoked(3600.0))]
    await asyncio.sleep(0)
    state.revoke(LaneRevoked("demo was revoked"))
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [LaneRevoked, LaneRevoked]


@pytest.mark.parametrize("is_locating", [False, True])
def test_a_release_confirms_the_last_pack_unless_gets_have_compared_others(is_locating: bool) -> None:
    """The request to unregister would confirm what the last comparing get returned."""
    state = PartitionState("demo")
    state.on_registered(0, 10 * STEP, None)
    state.on_get_sent()
    state.on_data(0, 10 * STEP, messages=2)
    state.confirm()
    state.is_locating = is_locating
    assert state.release(LaneRevoked("demo was released")) is not is_locating
