"""The task that pulls one queue: sends pulls, checks responses, updates the queue's state, pauses when a retry would not help.

One pull of a run is in flight at a time; the next follows when its response is there and the budget has room. A pull may be held
at the broker only if the queue was read to its end: so `at_end` is known at once, and only idle queues wait there. A response
without progress is followed by a pause, because a broker may hold no pulls, and a slave may be behind.

A broker reports a reset once, in the response to any pull that it has: so responses to pulls of older runs are checked for one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from mqbridge.errors import ClusterError, Failure, GapError, MqbridgeError, ProtocolError, RemoteProtocolError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client import pull_request
from mqbridge.rocketmq.client.budget import Account, Budget, Charge
from mqbridge.rocketmq.client.cleanup_policies import CleanupPolicies
from mqbridge.rocketmq.client.commit_carrying_pulls import CommitCarryingPulls
from mqbridge.rocketmq.client.pull_request import Puller, PullResponse
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.client.queue_state import Pull, QueueState
from mqbridge.rocketmq.client.queue_transitions import Event
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.tags import TAG

log = logging.getLogger(__name__)

FLOW_CONTROL_WAIT_S = 0.02
"""Pause after response 215, as in the Java clients."""
FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
HELD_S, MOST_IDLE_S = 0.02, 1.0
"""A response without progress that takes less than HELD_S was not held; pauses after it grow from HELD_S to MOST_IDLE_S."""
SUBSCRIPTION_WAIT_S = 1.0
"""Pause after a heartbeat that announces our subscription to a broker that did not know it."""
NULL_TRIES = 5
"""Consecutive responses that report a missing part of the queue's index before we treat it as a gap."""

_UNKNOWN_SUBSCRIPTION = frozenset(
    {
        Status.SUBSCRIPTION_NOT_EXIST,
        Status.SUBSCRIPTION_NOT_LATEST,
        Status.FILTER_DATA_NOT_EXIST,
        Status.FILTER_DATA_NOT_LATEST,
    }
)


class PullContext(Protocol):
    """The consumer, as pulling needs it."""

    budget: Budget
    policies: CleanupPolicies

    @property
    def commits_with_pulls(self) -> bool:
        """True if pulls may carry a commit."""

    async def announce(self) -> None:
        """Send a heartbeat, which announces our subscriptions to the brokers."""

    def request_rebalance(self) -> None:
        """Request a rebalance: the queues may have changed."""


class PullLoop:
    """Pulls `queue` into `state`. `changed` is called after a change, `ended` when pulling ended with an error."""

    def __init__(
        self,
        name: str,
        queue: Queue,
        state: QueueState,
        context: PullContext,
        subscription: Subscription,
        puller: Puller,
        *,
        changed: Callable[[], None],
        ended: Callable[[MqbridgeError], None],
        reset: Callable[[int, str], Awaitable[None]],
    ) -> None:
        self.first_offset = self.end_offset = 0
        """First and end offset of the queue at the last response."""
        self.answered_ms = 0
        """Time of the last response, ms since the epoch."""
        self.commits = CommitCarryingPulls()
        self._name, self._queue, self._state, self._context = name, queue, state, context
        self._tags, self._puller = subscription.tags, puller
        self._unfiltered = subscription.kind == TAG and not subscription.tags
        self._changed, self._ended, self._reset = changed, ended, reset
        self._account = Account()
        self._held_by_caller = 0
        self._nulls = 0
        self._errors = Backoff(FIRST_WAIT_S, MOST_WAIT_S)
        self._idle = Backoff(HELD_S, MOST_IDLE_S)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        """The task whose pull is in flight."""
        self._older: set[asyncio.Task[None]] = set()
        """Tasks of older runs whose pulls are in flight."""
        self._charge = Charge(self._account)
        """The charge of the last pull."""
        self._loop = asyncio.get_running_loop()

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be taken, or that the caller still holds on the budget."""
        return self._account.held

    def restart(self) -> None:
        """Pull from the current position; the response to an older pull is dropped, unless it reports a reset."""
        task = self._task
        if task is not None and task is self._asking:
            self._context.budget.settle(self._charge)
            self.commits.overtaken(task)
            self._older.add(task)
            task.add_done_callback(self._older.discard)
            self._task = None
            self.settle_budget()
        else:
            self._stop_current()
        self._nulls = 0
        self._task = spawn(self._run(self._state.run), f"rocketmq pulls of {self._name}")

    def stop(self) -> None:
        """Stop pulling; a response that still arrives is dropped."""
        self._stop_current()
        for task in self._older - {asyncio.current_task()}:
            self.commits.end(task)

    def _stop_current(self) -> None:
        self.settle_budget()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            self.commits.end(task)

    def settle_budget(self) -> None:
        """Release bytes that were taken or dropped from the budget, except those that the caller holds."""
        if (gone := self._account.held - self._state.waiting_bytes - self._held_by_caller) > 0:
            self._context.budget.taken(self._account, gone)

    def hold(self, size: int) -> None:
        """Keep taken bytes on the budget until `release_budget`."""
        self._held_by_caller += size

    def release_budget(self, size: int | None = None) -> None:
        """Release bytes that the caller held on the budget; None: all."""
        self._held_by_caller -= self._held_by_caller if size is None else min(size, self._held_by_caller)
        self.settle_budget()

    async def _run(self, run: int) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task here
        while self._state.reads(run):
            try:
                await self._round(task)
            except GapError as error:
                self._end(run, Event.GAP, error)
            except (ClusterError, ProtocolError) as error:
                if self._state.reads(run):
                    await self._failed(run, error)

    async def _round(self, task: "asyncio.Task[None]") -> None:
        """Send one pull and process its response. Raises the error of either."""
        budget = self._context.budget
        self._charge = charge = await budget.reserve(self._account, idle=self._state.at_end)
        moved = True
        try:
            asked_at, pull, answer = await self._ask(task, charge)
            if self._state.is_current(pull):
                self.first_offset, self.end_offset = answer.first, answer.end
                moved = await self._process(pull, answer, charge)
                if moved:
                    self._idle.reset()
            elif answer.is_reset:
                await self._reset(answer.next, "as an administrator has set the group's offset")
        finally:
            budget.settle(charge)
        if not moved and (not pull.hold or self._loop.time() - asked_at < HELD_S):
            await asyncio.sleep(self._idle.delay())

    async def _ask(self, task: "asyncio.Task[None]", charge: Charge) -> tuple[float, Pull, PullResponse]:
        state = self._state
        try:
            asked_at = self._loop.time()
            pull = state.pull(asked_at, with_commit=self._context.commits_with_pulls, may_hold=charge.may_wait)
            if pull.commit is not None:
                self.commits.started(task, hold=pull.hold)
            self._asking = task
            try:
                answer = await self._puller.pull(pull.offset, pull.commit, hold=pull.hold, messages=charge.messages)
            except BaseException:
                state.abandon_pull(pull, failed=True)
                raise
            finally:
                if self._asking is task:
                    self._asking = None
        finally:
            self.commits.answered(task)
        self.answered_ms = time.time_ns() // 1_000_000
        return asked_at, pull, answer

    # --- responses ----------------------------------------------------------------------------------------------------

    async def _process(self, pull: Pull, answer: PullResponse, charge: Charge) -> bool:
        """Update the state; return True after progress, or after a pause here. Raises the error in the response."""
        try:
            if answer.kind == pull_request.MOVED:
                await self._moved(answer)
                return True
            pulled = self._records(answer) if answer.kind == pull_request.FOUND else None
            if pulled is not None and self._is_missing_some(pulled) and not await self._context.policies.compacted(self._queue):
                raise self._gap(pulled.first_stored, "the broker deleted them before they were read")
            if pulled is None and not self._plausible(answer):
                await asyncio.sleep(self._errors.delay())
                return True
            return self._accept(pull, answer, pulled, charge)
        finally:
            self._state.abandon_pull(pull, failed=False)

    def _accept(self, pull: Pull, answer: PullResponse, pulled: PulledRecords | None, charge: Charge) -> bool:
        if not self._state.is_current(pull):
            return False
        self._nulls = 0
        self._errors.reset()
        moved = self._state.answered(pull, answer.next, answer.end, pulled)
        if pulled is not None:
            self._context.budget.answered(self._account, charge, pulled.size, pulled.stored)
        self._changed()
        return moved

    def _records(self, answer: PullResponse) -> PulledRecords:
        """Return the records of the response. Raises RemoteProtocolError for an inconsistent response."""
        position = self._state.position
        if answer.next <= position or not answer.body:
            raise RemoteProtocolError(
                f"a response with {len(answer.body)} bytes for offset {position} of {self._name} continues at {answer.next}"
            )
        return PulledRecords(self._queue, answer.body, position, answer.next, self._tags)

    def _is_missing_some(self, pulled: PulledRecords) -> bool:
        """Return True if the broker skipped messages that we would have read, as far as we can tell."""
        return self._unfiltered and pulled.first_stored > self._state.position and not self._state.first_start

    def _plausible(self, answer: PullResponse) -> bool:
        """Return True if a response without messages is plausible; else the same offset is pulled again. Raises GapError."""
        position, first_start = self._state.position, self._state.first_start
        lost = answer.remark in (pull_request.FOUND_NULL, pull_request.REMOVING) and answer.next > position and not first_start
        if not lost and answer.next >= position and (answer.next > position or answer.next >= answer.end):
            return True
        self._nulls += 1
        if lost and self._nulls > NULL_TRIES:
            raise self._gap(answer.next, f"the broker says {answer.remark}")
        return False

    async def _moved(self, answer: PullResponse) -> None:
        """Process response 21: a reset by an administrator, our chosen start is already deleted, or messages are lost."""
        position = self._state.position
        if answer.is_reset or answer.first <= position <= answer.end:
            await self._reset(answer.next, "as an administrator has set the group's offset")
        elif self._state.first_start:
            log.info("%s: starting at offset %d, since %d is deleted", self._name, answer.next, position)
            self._state.move(answer.next, own_start=True)
            self.restart()
        elif answer.next > position:
            raise self._gap(answer.next, "they were deleted before they were read; give the broker a longer fileReservedTime")
        else:
            raise GapError(
                f"{self._name} ends at offset {answer.next}, before the next offset {position}: the topic was recreated, or the "
                "broker lost messages that it had not written to disk. Reset the group's offset to continue"
            )

    def _gap(self, next_: int, why: str) -> GapError:
        position = self._state.position
        return GapError(f"{self._name} has a gap: offsets {position} to {next_ - 1} were not read, {why}", (next_,))

    # --- errors -------------------------------------------------------------------------------------------------------

    async def _failed(self, run: int, error: ClusterError | ProtocolError) -> None:
        """Pause, announce our subscriptions to the broker, or end."""
        if not isinstance(error, ServerRefused):
            await self._pause(error)
        elif error.code == Status.FLOW_CONTROL:
            await asyncio.sleep(FLOW_CONTROL_WAIT_S)
        elif error.code in _UNKNOWN_SUBSCRIPTION:
            log.info("%s: sending a heartbeat first: %s", self._name, error)
            await self._context.announce()
            await asyncio.sleep(SUBSCRIPTION_WAIT_S)
        elif error.failure is Failure.FATAL:
            self._end(run, Event.REFUSE, error)
        else:
            await self._pause(error)

    async def _pause(self, error: MqbridgeError) -> None:
        delay = self._errors.delay()
        log.log(level_of(error, logging.WARNING), "%s: pull failed, retrying in %.1f s: %s", self._name, delay, error)
        if isinstance(error, ClusterError) and error.failure is Failure.REFRESH:
            self._context.request_rebalance()
        await asyncio.sleep(delay)

    def _end(self, run: int, event: Event, error: MqbridgeError) -> None:
        """End with an error; what waits can still be taken."""
        if self._state.reads(run) and self._state.end(event):
            log.error("%s", error)
            self._ended(error)
