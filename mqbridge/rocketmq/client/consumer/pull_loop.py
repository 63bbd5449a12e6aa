"""The task that pulls one queue: sends pulls, checks responses, updates the queue's state, and pauses after errors.

A run is a period of reading without a jump; a seek, a rewind or a reset begins a new one. One pull of a run is in flight at a
time; the next is sent when its response has arrived and the budget has room. A pull may be held at the broker (long polling)
only if the queue was read to its end. The response to any other pull arrives at once, so the consumer soon learns that it has
reached the end. A response without progress is followed by a pause, because a broker may be configured not to hold pulls, and a
slave may be behind its master.

When an administrator resets the group's offset, a broker reports this once, in the response to any pull of the queue. So the
responses to pulls of older runs, which are otherwise ignored, are checked for a reset.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from mqbridge.errors import ClusterError, Failure, GapError, MqbridgeError, ProtocolError, RemoteProtocolError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.consumer import pull_request
from mqbridge.rocketmq.client.consumer.budget import Account, Charge, PullBudget
from mqbridge.rocketmq.client.consumer.cleanup_policies import CleanupPolicies
from mqbridge.rocketmq.client.consumer.commit_carrying_pulls import CommitCarryingPulls
from mqbridge.rocketmq.client.consumer.pull_request import Puller, PullResponse
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_identity import QueueIdentity, Verdict
from mqbridge.rocketmq.client.consumer.queue_state import Pull, QueueState
from mqbridge.rocketmq.client.consumer.queue_transitions import Event
from mqbridge.rocketmq.client.consumer.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.tags import TAG

log = logging.getLogger(__name__)
T = TypeVar("T")

FLOW_CONTROL_WAIT_S = 0.02
"""Pause after the response FLOW_CONTROL (215), as in the Java clients."""
MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.2, 10.0
"""The pauses before retries of a failed pull grow from MIN_RETRY_PAUSE_S to MAX_RETRY_PAUSE_S."""
MIN_HOLD_S, MAX_IDLE_PAUSE_S = 0.02, 1.0
"""If a response without progress comes within MIN_HOLD_S, the broker did not hold the pull. Then we pause: MIN_HOLD_S at first,
and longer after each further such response, up to MAX_IDLE_PAUSE_S."""
SUBSCRIPTION_WAIT_S = 1.0
"""Pause after a heartbeat that announces our subscription to a broker that did not know it."""
MAX_UNREADABLE_RESPONSES = 5
"""After this many consecutive implausible responses (see `_is_plausible`), one that reports a read error raises GapError."""

_UNKNOWN_SUBSCRIPTION_CODES = frozenset(
    {
        Status.SUBSCRIPTION_NOT_EXIST,
        Status.SUBSCRIPTION_NOT_LATEST,
        Status.FILTER_DATA_NOT_EXIST,
        Status.FILTER_DATA_NOT_LATEST,
    }
)
"""Response codes of a broker that does not know our subscription, or knows another version of it."""


class QueueMadeAnew(GapError):
    """The topic was deleted and created again: the queue begins at the offset `first`, and none of its messages was read."""

    def __init__(self, problem: str, first: int) -> None:
        super().__init__(problem)
        self.first = first


class PullContext(Protocol):
    """The part of a consumer that the pulling of its queues uses."""

    budget: PullBudget
    """Limits the bytes that all queues of the consumer buffer together."""
    policies: CleanupPolicies
    """Tell whether missing offsets are normal in a topic."""

    @property
    def commits_with_pulls(self) -> bool:
        """True if pulls may carry a commit; False: commits are sent by themselves."""

    async def send_heartbeat(self) -> None:
        """Send a heartbeat, which announces our subscriptions to the brokers."""

    def request_rebalance(self) -> None:
        """Request a rebalance: the queues may have changed."""


class PullLoop:
    """Pulls `queue` into `state`. `name` is the queue's, for logs and errors.

    `on_change` is called after each response that was applied to the state, `on_error` when pulling has stopped because of an
    error, and `on_reset` with the new offset and the reason (for logs) when an administrator has reset the group's offset.
    """

    def __init__(
        self,
        name: str,
        queue: Queue,
        state: QueueState,
        context: PullContext,
        subscription: Subscription,
        puller: Puller,
        *,
        on_change: Callable[[], None],
        on_error: Callable[[MqbridgeError], None],
        on_reset: Callable[[int, str], Awaitable[None]],
    ) -> None:
        self.first_offset = self.end_offset = 0
        """First and end offset of the queue by the last response; 0 before the first response."""
        self.answered_ms = 0
        """Time of the last response, ms since the epoch; 0 before the first response."""
        self.commit_carrying_pulls = CommitCarryingPulls()
        """The pulls in flight that also carry a commit."""
        self._name, self._queue = name, queue
        self._state, self._context = state, context
        self._tags, self._puller = subscription.tags, puller
        # True if the broker returns every message of the queue, so that missing offsets can be noticed.
        self._unfiltered = subscription.expression_type == TAG and not subscription.tags
        self._on_change, self._on_error, self._on_reset = on_change, on_error, on_reset
        self._account = Account()
        self._kept_bytes = 0
        """Bytes that were taken from the buffer, and that count on the budget until `release_budget`."""
        self.identity = QueueIdentity(puller)
        """Tells whether the queue is the one from which messages were read."""
        self._unreadable_responses = 0
        """Number of consecutive responses for which `_is_plausible` returned False."""
        self.refusal: str | None = None
        """Why the broker does not permit pulls, from a refusal with NO_PERMISSION to the next response; None while it does."""
        self._retry_backoff = Backoff(MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S)
        self._idle_backoff = Backoff(MIN_HOLD_S, MAX_IDLE_PAUSE_S)
        self._task: asyncio.Task[None] | None = None
        """The task of the current run."""
        self._awaiting_task: asyncio.Task[None] | None = None
        """The task that sent the last pull, until its response."""
        self._older_tasks: set[asyncio.Task[None]] = set()
        """Tasks of older runs whose pulls are in flight; each ends after its response."""
        self._charge = Charge(self._account)
        """The bytes of the budget that are reserved for the response to the last pull."""
        self._loop = asyncio.get_running_loop()

    @property
    def held_bytes(self) -> int:
        """Bytes of this queue that are buffered, or taken and not yet released from the budget."""
        return self._account.held

    def restart(self) -> None:
        """Pull from the current position. The response to a pull in flight is ignored, unless it reports a reset.

        A further request of the pull's task is cancelled: its late response would tell the new run about the old one.
        """
        task, self._task = self._task, None
        if task is not None and task is self._awaiting_task:
            self._context.budget.settle(self._charge)
            self.commit_carrying_pulls.mark_ending(task)
            self._older_tasks.add(task)
            task.add_done_callback(self._older_tasks.discard)
        elif task is not None and task is not asyncio.current_task():  # the current task ends by itself, with its run
            task.cancel()
        self.settle_budget()
        self._unreadable_responses = 0
        self._task = spawn(self._run(self._state.run), f"rocketmq pulls of {self._name}")

    def stop(self) -> None:
        """Stop pulling; a response that still arrives is ignored, unless it reports a reset."""
        self._context.budget.settle(self._charge)  # not with the response, for which a commit in the pull may wait
        self.settle_budget()
        task, self._task = self._task, None
        for each in (task, *self._older_tasks):
            if each is not None and each is not asyncio.current_task():  # the current task ends by itself, with its run
                self.commit_carrying_pulls.cancel_unless_committing(each)

    def settle_budget(self) -> None:
        """Release bytes from the budget that are no longer buffered, except those kept by `keep_on_budget`."""
        if (surplus := self._account.held - self._state.buffered_bytes - self._kept_bytes) > 0:
            self._context.budget.release(self._account, surplus)

    def keep_on_budget(self, size: int) -> None:
        """Keep `size` taken bytes on the budget until `release_budget`."""
        self._kept_bytes += size

    def hold_budget(self, size: int) -> None:
        """Charge `size` bytes more to the budget until `release_budget`, for memory that the taken bytes need besides."""
        self._context.budget.hold(self._account, size)
        self._kept_bytes += size

    @property
    def waits_for_release(self) -> bool:
        """True if the next pull waits for room in the budget, and bytes of this queue are kept until `release_budget`."""
        return self._account.waiter is not None and self._kept_bytes > 0

    def release_budget(self, size: int | None = None) -> None:
        """Release `size` bytes that were kept on the budget by `keep_on_budget`; None: all of them."""
        self._kept_bytes -= self._kept_bytes if size is None else min(size, self._kept_bytes)
        self.settle_budget()

    async def _run(self, run: int) -> None:
        """Pull until this run ends."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task here
        while self._state.reads(run):
            try:
                await self._pull_once(task)
            except QueueMadeAnew as error:
                self._stop_pulling(run, Event.GAP, error, error.first)
            except GapError as error:
                self._stop_pulling(run, Event.GAP, error)
            except (ClusterError, ProtocolError) as error:
                if self._state.reads(run):
                    await self._handle_error(run, error)

    async def _pull_once(self, task: "asyncio.Task[None]") -> None:
        """Send one pull, process its response, and pause if there was no progress. Raises the error of the pull or response."""
        budget = self._context.budget
        # An idle queue requests fewer messages: a broker answers a held pull as soon as one message arrives.
        self._charge = charge = await budget.reserve(self._account, idle=self._state.at_end)
        progress = True  # without progress we pause; a response to an older run needs no pause
        try:
            sent_at, pull, response = await self._send_pull(task, charge)
            if self._state.is_current(pull):
                if response.end < self.end_offset or response.first < self.first_offset:
                    self.identity.suspect()
                self.first_offset, self.end_offset = response.first, response.end
                progress = await self._process(pull, response, charge)
                if progress:
                    self._idle_backoff.reset()
            else:
                await self._follow_reset(response)
        finally:
            budget.settle(charge)
        if not progress and (not pull.hold or self._loop.time() - sent_at < MIN_HOLD_S):
            await asyncio.sleep(self._idle_backoff.delay())

    async def _send_pull(self, task: "asyncio.Task[None]", charge: Charge) -> tuple[float, Pull, PullResponse]:
        """Send the next pull and wait for its response; return the loop time of sending, the pull and the response."""
        state = self._state
        try:
            sent_at = self._loop.time()
            pull = state.pull(sent_at, with_commit=self._context.commits_with_pulls, may_hold=charge.may_hold)
            if pull.commit is not None:
                self.commit_carrying_pulls.started(task, hold=pull.hold)
            self._awaiting_task = task
            try:
                response = await self._puller.pull(pull.offset, pull.commit, hold=pull.hold, messages=charge.messages)
            except BaseException:
                state.end_pull(pull, failed=True)  # the commit in it, if any, may not have arrived
                raise
            finally:
                if self._awaiting_task is task:
                    self._awaiting_task = None
        finally:
            self.commit_carrying_pulls.answered(task)
        self.answered_ms = time.time_ns() // 1_000_000
        return sent_at, pull, response

    # --- responses ----------------------------------------------------------------------------------------------------

    async def _process(self, pull: Pull, response: PullResponse, charge: Charge) -> bool:
        """Apply a response to the state; return False if it made no progress and the caller must pause.

        Raises GapError, and RemoteProtocolError for an inconsistent response.
        """
        try:
            if response.code == pull_request.MOVED:
                await self._process_offset_moved(response)
                return True
            pulled = self._records(response) if response.code == pull_request.FOUND else None
            is_checked = self.identity.is_due(found=pulled is not None)
            if is_checked:
                await self._check_identity()
                if not self._state.is_current(pull):
                    return True  # the run has ended meanwhile, so the caller must not pause
            if pulled is not None and self._skips_messages(pulled) and not await self._context.policies.is_compacted(self._queue):
                raise self._gap(pulled.first_stored_offset, "the broker deleted them before they were read")
            if pulled is None and not self._is_plausible(response):
                await asyncio.sleep(self._retry_backoff.delay())
                return True  # we have paused already, so the caller must not
            if pulled is None and response.next >= response.end and self.identity.lacks_anchor(response.next):
                await self._follow_reset(await self._awaited(self.identity.seek_anchor(response.next)))
            return self._accept(pull, response, pulled, charge, is_checked=is_checked)
        finally:
            self._state.end_pull(pull, failed=False)  # the next pull may be sent

    def _accept(
        self, pull: Pull, response: PullResponse, pulled: PulledRecords | None, charge: Charge, *, is_checked: bool
    ) -> bool:
        """Add the records to the state and the budget, and move the position; return False if there was no progress.

        `is_checked`: the queue's identity was checked after the response had arrived. If the run has ended meanwhile, nothing is
        added, and the caller need not pause: returns True.
        """
        if not self._state.is_current(pull):
            return True
        self._unreadable_responses = 0
        self._retry_backoff.reset()
        if self.refusal is not None:
            self.refusal = None
            log.info("%s: the broker permits reading again", self._name)
        progress = self._state.apply_response(pull, response.next, response.end, pulled)
        if pulled is not None:
            self.identity.on_accepted(pulled, is_checked=is_checked)
            self._context.budget.record_response(self._account, charge, pulled.size, pulled.stored)
        self._on_change()
        return progress

    def _records(self, response: PullResponse) -> PulledRecords:
        """Return the records of the response. Raises RemoteProtocolError for an inconsistent response."""
        position = self._state.position
        if response.next <= position or not response.body:
            raise RemoteProtocolError(
                f"the response for offset {position} of {self._name} is invalid: it should contain messages and continue above "
                f"{position}, but has {len(response.body)} bytes of messages and continues at offset {response.next}"
            )
        return PulledRecords(self._queue, response.body, position, response.next, self._tags)

    def _skips_messages(self, pulled: PulledRecords) -> bool:
        """Return True if messages between the requested offset and the first record are missing.

        Returns False with a filter, because the broker may have left them out, and at a start that we chose, where missing
        messages do not matter.
        """
        return self._unfiltered and pulled.first_stored_offset > self._state.position and not self._state.first_start

    def _is_plausible(self, response: PullResponse) -> bool:
        """Return True if a response without messages may move the position, False if the same offset must be pulled again.

        It must be pulled again if the broker reports that it could not read at the position, continues at a lower offset, or
        returns nothing before the end of the queue. Raises GapError if the broker still reports that it could not read, after
        MAX_UNREADABLE_RESPONSES responses of any of these kinds.
        """
        position, first_start = self._state.position, self._state.first_start
        cannot_read = response.remark in (pull_request.FOUND_NULL, pull_request.REMOVING)
        skips_messages = cannot_read and response.next > position and not first_start
        # The position moves forward, or stays at the end of the queue.
        if not skips_messages and response.next >= position and (response.next > position or response.next >= response.end):
            return True
        self._unreadable_responses += 1
        if skips_messages and self._unreadable_responses > MAX_UNREADABLE_RESPONSES:
            raise self._gap(response.next, f"the broker reports {response.remark}")
        return False

    async def _process_offset_moved(self, response: PullResponse) -> None:
        """Process the response PULL_OFFSET_MOVED (21).

        It reports a reset by an administrator, or that our offset is outside of the queue: messages at the start that we chose
        are already deleted, or messages are lost. Raises GapError for lost messages.
        """
        position = self._state.position
        if response.is_reset:
            await self._follow_reset(response)
        elif response.first <= position <= response.end:
            await self._on_reset(response.next, "because an administrator has set the group's offset")
        elif self._state.first_start:
            log.info("%s: starting at offset %d, because offset %d is deleted already", self._name, response.next, position)
            self._state.move(response.next, first_start=True)
            self.restart()
        elif response.next > position:
            raise self._gap(response.next, "they were deleted before they were read; give the broker a longer fileReservedTime")
        else:
            self.identity.suspect()
            if self.identity.is_due(found=False):
                await self._check_identity()
            raise self._moved_back(response)

    def _moved_back(self, response: PullResponse) -> GapError:
        """Return the error for a queue that ends before our position. An empty queue is taken for one that was made anew."""
        problem = (
            f"{self._name} ends at offset {response.end}, but reading was to continue at offset {self._state.position}: the "
            "topic was created again, or the broker lost messages that it had not written to disk. Reset the group's offset to "
            "continue"
        )
        if response.end > 0:
            return GapError(problem, went_back=((response.end,), (self._state.position,)))
        return QueueMadeAnew(problem, response.first)

    async def _check_identity(self) -> None:
        """Check that the queue is the one from which messages were read. Raises GapError if not, and the errors of a pull."""
        verdict, response = await self._awaited(self.identity.check())
        await self._follow_reset(response)
        if verdict in (Verdict.SAME, Verdict.UNKNOWN) or await self._context.policies.is_compacted(self._queue):
            return
        if verdict is Verdict.BACK:
            raise self._moved_back(response)
        raise QueueMadeAnew(
            f"the topic of {self._name} was deleted and created again: other messages than those that were read are at the "
            f"offsets {response.first} to {self._state.position}. They are read after a reset of the group's offset, or a "
            "restart of the consumer",
            response.first,
        )

    async def _awaited(self, request: Coroutine[Any, Any, T]) -> T:
        """Send a further request of the current pull. A release waits for the response, because it may report a reset."""
        task = asyncio.current_task()
        if task is None or task is not self._task:  # a new run has begun, whose pull is awaited instead
            return await request
        self.commit_carrying_pulls.started(task, hold=False)
        try:
            return await request
        finally:
            self.commit_carrying_pulls.answered(task)

    async def _follow_reset(self, response: PullResponse) -> None:
        """Follow an administrator's reset, which a broker reports once, in the response to any request of the queue."""
        if response.is_reset:
            self.identity.forget()  # what was read before no longer tells where to continue
            await self._on_reset(response.next, "because an administrator has set the group's offset")

    def _gap(self, next_: int, reason: str) -> GapError:
        """Return the error for missing messages from the current position up to, but not including, offset `next_`.

        The error contains `next_` as the position after the gap, from which reading can be continued by a seek.
        """
        position = self._state.position
        return GapError(f"{self._name} has a gap: the messages at offsets {position} to {next_ - 1} are lost: {reason}", (next_,))

    # --- errors -------------------------------------------------------------------------------------------------------

    async def _handle_error(self, run: int, error: ClusterError | ProtocolError) -> None:
        """Pause, or announce our subscriptions to the broker and pause, or stop pulling after a FATAL refusal."""
        if not isinstance(error, ServerRefused):
            await self._pause(error)
        elif error.code == Status.FLOW_CONTROL:
            await asyncio.sleep(FLOW_CONTROL_WAIT_S)
        elif error.code in _UNKNOWN_SUBSCRIPTION_CODES:
            log.info("%s: the broker does not know this member's subscription, sending a heartbeat: %s", self._name, error)
            await self._context.send_heartbeat()
            await asyncio.sleep(SUBSCRIPTION_WAIT_S)
        elif error.code == Status.NO_PERMISSION and not isinstance(error, AccessRefused):
            await self._wait_for_permission(error)
        elif error.failure is Failure.FATAL:
            self._stop_pulling(run, Event.REFUSE, error)
        else:
            await self._pause(error)

    async def _wait_for_permission(self, error: ServerRefused) -> None:
        """Pause before the next pull, because an operator has paused the group (`consumeEnable=false`), or reading of the topic.

        Only the first refusal is a warning.
        """
        level = logging.WARNING if self.refusal is None else logging.DEBUG
        self.refusal = str(error)
        self.identity.suspect()
        log.log(level, "%s: reading waits until the broker permits it again: %s", self._name, error)
        await asyncio.sleep(self._retry_backoff.delay())

    async def _pause(self, error: MqbridgeError) -> None:
        """Log the error and pause before the next pull; request a rebalance if the route may be outdated."""
        self.identity.suspect()
        delay = self._retry_backoff.delay()
        log.log(retry_log_level(error, logging.WARNING), "%s: a pull failed, retrying in %.1f s: %s", self._name, delay, error)
        if isinstance(error, ClusterError) and error.failure is Failure.REFRESH:
            self._context.request_rebalance()
        await asyncio.sleep(delay)

    def _stop_pulling(self, run: int, event: Event, error: MqbridgeError, anew_first: int | None = None) -> None:
        """Stop pulling because of an error; buffered records can still be taken. Without effect if the run has ended.

        `event` is GAP or REFUSE; `anew_first` is the first offset of a queue that was made anew.
        """
        if self._state.reads(run) and self._state.stop_pulling(event, anew_first):
            self.identity.forget()
            log.error("%s: pulling has stopped until a seek or an offset reset: %s", self._name, error)
            self._on_error(error)
