"""The task that pulls one queue: asks, judges the answer, tells the queue's state, and waits where asking again would not help.

One pull of a run is on its way at a time; the next one leaves when its answer is there and the budget has room. A pull waits at
the broker only when the queue is known to be read to its end, so `at_end` is known at once and only idle queues wait there. An
answer that moves nothing is followed by a pause, as a broker may hold no pulls, and a slave may be behind.

Brokers tell of a reset once, in the answer to whichever pull they have: so one that was overtaken by a new run is still heard.
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
from mqbridge.rocketmq.client import pulling
from mqbridge.rocketmq.client.budget import Account, Budget, Charge
from mqbridge.rocketmq.client.commit_carrying_pulls import CommitCarryingPulls
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.pulling import PullAnswer, Puller
from mqbridge.rocketmq.client.queue_state import Pull, QueueState
from mqbridge.rocketmq.client.queue_table import Event
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.client.topic_policies import TopicPolicies
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.tags import TAG

log = logging.getLogger(__name__)

FLOW_CONTROL_WAIT_S = 0.02
"""After answer 215, as the Java clients have it."""
FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
HELD_S, MOST_IDLE_S = 0.02, 1.0
"""An answer that moves nothing and comes sooner than HELD_S was not held; the pauses after it grow from there."""
SUBSCRIPTION_WAIT_S = 1.0
"""After an answer that the broker does not know our subscription, and the heartbeat that tells it."""
NULL_TRIES = 5
"""Answers in a row that a part of the queue's index is missing, before it is believed."""

_UNKNOWN_SUBSCRIPTION = frozenset(
    {
        Status.SUBSCRIPTION_NOT_EXIST,
        Status.SUBSCRIPTION_NOT_LATEST,
        Status.FILTER_DATA_NOT_EXIST,
        Status.FILTER_DATA_NOT_LATEST,
    }
)


class PullContext(Protocol):
    """What pulling needs of its consumer."""

    budget: Budget
    policies: TopicPolicies

    @property
    def commits_with_pulls(self) -> bool:
        """Whether pulls may carry the group's offset along."""

    async def announce(self) -> None:
        """Send a heartbeat, which tells brokers our subscriptions."""

    def look_again(self) -> None:
        """The queues may have changed: divide them anew."""


class PullLoop:
    """Pulls `queue` into `state`. `changed` is called when there is news, `ended` when reading ended by itself."""

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
        """Where the queue began and ended when the last answer came."""
        self.answered_ms = 0
        """When the last answer came, ms since the epoch."""
        self.commits = CommitCarryingPulls()
        self._name, self._queue, self._state, self._context = name, queue, state, context
        self._tags, self._puller = subscription.tags, puller
        self._unfiltered = subscription.kind == TAG and not subscription.tags
        self._changed, self._ended, self._reset = changed, ended, reset
        self._account = Account()
        self._lent = 0
        self._nulls = 0
        self._errors = Backoff(FIRST_WAIT_S, MOST_WAIT_S)
        self._idle = Backoff(HELD_S, MOST_IDLE_S)
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        """The task whose pull is on its way."""
        self._older: set[asyncio.Task[None]] = set()
        """Tasks of older runs whose pulls are on their way."""
        self._charge = Charge(self._account)
        """Of the last pull."""
        self._loop = asyncio.get_running_loop()

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be taken, or are lent."""
        return self._account.held

    def restart(self) -> None:
        """Pull from where the state now is; an answer to an older pull is dropped, unless it tells of a reset."""
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
        """Pull no more; an answer that still comes is dropped."""
        self._stop_current()
        for task in self._older - {asyncio.current_task()}:
            self.commits.end(task)

    def _stop_current(self) -> None:
        self.settle_budget()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            self.commits.end(task)

    def settle_budget(self) -> None:
        """Give back what was taken or forgotten, but for what is lent."""
        if (gone := self._account.held - self._state.waiting_bytes - self._lent) > 0:
            self._context.budget.taken(self._account, gone)

    def lend(self, size: int) -> None:
        """So many bytes were taken, and count until they are given back."""
        self._lent += size

    def give_back(self, size: int | None = None) -> None:
        """Bytes that were lent count no longer; None: all."""
        self._lent -= self._lent if size is None else min(size, self._lent)
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
        """One pull and what follows from its answer. Raises what is wrong with it."""
        budget = self._context.budget
        self._charge = charge = await budget.reserve(self._account, idle=self._state.at_end)
        moved = True
        try:
            asked_at, pull, answer = await self._ask(task, charge)
            if self._state.is_current(pull):
                self.first_offset, self.end_offset = answer.first, answer.end
                moved = await self._judge(pull, answer, charge)
                if moved:
                    self._idle.reset()
            elif answer.is_reset:
                await self._reset(answer.next, "as an administrator has set the group's offset")
        finally:
            budget.settle(charge)
        if not moved and (not pull.hold or self._loop.time() - asked_at < HELD_S):
            await asyncio.sleep(self._idle.delay())

    async def _ask(self, task: "asyncio.Task[None]", charge: Charge) -> tuple[float, Pull, PullAnswer]:
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
                state.asked_in_vain(pull, failed=True)
                raise
            finally:
                if self._asking is task:
                    self._asking = None
        finally:
            self.commits.answered(task)
        self.answered_ms = time.time_ns() // 1_000_000
        return asked_at, pull, answer

    # --- what an answer means -----------------------------------------------------------------------------------------

    async def _judge(self, pull: Pull, answer: PullAnswer, charge: Charge) -> bool:
        """Tell the state; whether anything moved, or was waited for. Raises what is wrong with the answer."""
        try:
            if answer.kind == pulling.MOVED:
                await self._moved(answer)
                return True
            pulled = self._cut(answer) if answer.kind == pulling.FOUND else None
            if pulled is not None and self._is_missing_some(pulled) and not await self._context.policies.compacted(self._queue):
                raise self._gap(pulled.first_stored, "the broker deleted them before they were read")
            if pulled is None and not self._plausible(answer):
                await asyncio.sleep(self._errors.delay())
                return True
            return self._believe(pull, answer, pulled, charge)
        finally:
            self._state.asked_in_vain(pull, failed=False)

    def _believe(self, pull: Pull, answer: PullAnswer, pulled: Pulled | None, charge: Charge) -> bool:
        if not self._state.is_current(pull):
            return False
        self._nulls = 0
        self._errors.reset()
        moved = self._state.answered(pull, answer.next, answer.end, pulled)
        if pulled is not None:
            self._context.budget.answered(self._account, charge, pulled.size, pulled.stored)
        self._changed()
        return moved

    def _cut(self, answer: PullAnswer) -> Pulled:
        """What the answer brought. Raises RemoteProtocolError for one that makes no sense."""
        position = self._state.position
        if answer.next <= position or not answer.body:
            raise RemoteProtocolError(
                f"an answer with {len(answer.body)} bytes for offset {position} of {self._name} goes on at {answer.next}"
            )
        return Pulled(self._queue, answer.body, position, answer.next, self._tags)

    def _is_missing_some(self, pulled: Pulled) -> bool:
        """Whether the broker left out what we would have read, as far as one can tell."""
        return self._unfiltered and pulled.first_stored > self._state.position and not self._state.first_start

    def _plausible(self, answer: PullAnswer) -> bool:
        """Whether an answer without messages may be believed; if not, the same offset is asked for again. Raises GapError."""
        position, first_start = self._state.position, self._state.first_start
        lost = answer.remark in (pulling.FOUND_NULL, pulling.REMOVING) and answer.next > position and not first_start
        if not lost and answer.next >= position and (answer.next > position or answer.next >= answer.end):
            return True
        self._nulls += 1
        if lost and self._nulls > NULL_TRIES:
            raise self._gap(answer.next, f"the broker says {answer.remark}")
        return False

    async def _moved(self, answer: PullAnswer) -> None:
        """Answer 21: a reset by an administrator, our own start that is gone already, or messages that are lost."""
        position = self._state.position
        if answer.is_reset or answer.first <= position <= answer.end:
            await self._reset(answer.next, "as an administrator has set the group's offset")
        elif self._state.first_start:
            log.info("%s: begins at offset %d, since %d is gone", self._name, answer.next, position)
            self._state.move(answer.next, own_start=True)
            self.restart()
        elif answer.next > position:
            raise self._gap(answer.next, "they were deleted before they were read; give the broker a longer fileReservedTime")
        else:
            raise GapError(
                f"{self._name} ends at offset {answer.next}, reading was to go on at {position}: the topic was made anew, or the "
                "broker lost what it had not written to disk. Reset the group's offset to go on"
            )

    def _gap(self, next_: int, why: str) -> GapError:
        position = self._state.position
        return GapError(f"{self._name} has a gap: offsets {position} to {next_ - 1} were not read, {why}", (next_,))

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    async def _failed(self, run: int, error: ClusterError | ProtocolError) -> None:
        """Wait, tell the broker our subscriptions, or end."""
        if not isinstance(error, ServerRefused):
            await self._pause(error)
        elif error.code == Status.FLOW_CONTROL:
            await asyncio.sleep(FLOW_CONTROL_WAIT_S)
        elif error.code in _UNKNOWN_SUBSCRIPTION:
            log.info("%s: a heartbeat goes first: %s", self._name, error)
            await self._context.announce()
            await asyncio.sleep(SUBSCRIPTION_WAIT_S)
        elif error.failure is Failure.FATAL:
            self._end(run, Event.REFUSE, error)
        else:
            await self._pause(error)

    async def _pause(self, error: MqbridgeError) -> None:
        delay = self._errors.delay()
        log.log(level_of(error, logging.WARNING), "%s: pulling goes on in %.1f s: %s", self._name, delay, error)
        if isinstance(error, ClusterError) and error.failure is Failure.REFRESH:
            self._context.look_again()
        await asyncio.sleep(delay)

    def _end(self, run: int, event: Event, error: MqbridgeError) -> None:
        """It ends by itself; what waits can still be taken."""
        if self._state.reads(run) and self._state.end(event):
            log.error("%s", error)
            self._ended(error)
