"""One queue while it is ours: pulled ahead, handed out answer by answer, committed behind.

Four offsets, never out of order: acknowledged <= handed out <= received up to (`position`) <= end of the queue. What is committed
is the first. It never goes back but by `seek` or by a reset at the broker, and once nothing is out it follows `position` over
what a filter left out. One pull is on its way at a time; the next one leaves when its answer is there and the budget has room.

Pulls carry commits along; what has to be the last word (`_save`) waits for those, see `commit_carrying_pulls`.

A pull that answers "nothing" waits at the broker only when the queue is known to be read to its end: so `caught_up` is known at
once, and only idle queues wait. A queue that ends for a reason of its own (GapError, a refusal that retrying does not help)
hands out what it has and then raises that; the other queues of the consumer go on.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Protocol

from mqbridge.errors import (
    ClusterError,
    Failure,
    GapError,
    LaneRevoked,
    MqbridgeError,
    ProtocolError,
    RemoteProtocolError,
    ServerRefused,
)
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client import pulling
from mqbridge.rocketmq.client.brokers import twice
from mqbridge.rocketmq.client.budget import Account, Budget
from mqbridge.rocketmq.client.commit_carrying_pulls import Carriers
from mqbridge.rocketmq.client.locks import VALID_S
from mqbridge.rocketmq.client.offsets import OffsetStore
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.pulling import PullAnswer, Puller
from mqbridge.rocketmq.client.route import shown
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.wire.bodies import Queue
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.tags import TAG

log = logging.getLogger(__name__)

FLOW_CONTROL_WAIT_S = 0.02
"""After answer 215, as the Java clients have it."""
FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
HELD_S = 0.02
"""A pull that was to be held and comes back sooner was not held; without this pause such a broker would be asked all the time."""
SUBSCRIPTION_WAIT_S = 1.0
"""After an answer that the broker does not know our subscription, and the heartbeat that tells it."""
NULL_TRIES = 5
"""Answers in a row that a part of the queue's index is missing, before it is believed."""
OVERTAKEN_S = 3.0
"""How long the last word waits for the answer to a pull that carries a commit; a broker that is well needs milliseconds."""
REVOKED_S = 0.25
"""The same for a queue that another member takes over: that one asks for the offset half a second after it heard of us."""
SETTLE_S = 3.0
"""How long a locked queue that is taken away waits for what is out, before its lock goes to another member."""

_UNKNOWN_SUBSCRIPTION = frozenset(
    {
        Status.SUBSCRIPTION_NOT_EXIST,
        Status.SUBSCRIPTION_NOT_LATEST,
        Status.FILTER_DATA_NOT_EXIST,
        Status.FILTER_DATA_NOT_LATEST,
    }
)


class Owner(Protocol):
    """What a stream needs of its consumer."""

    name: str
    budget: Budget
    store: OffsetStore

    async def announce(self) -> None:
        """Send a heartbeat, which tells brokers our subscriptions."""

    def look_again(self) -> None:
        """The queues may have changed: divide them anew."""

    async def compacted(self, queue: Queue) -> bool:
        """Whether the topic keeps only the newest message per key, so that offsets are missing on purpose."""

    async def unlock(self, queue: Queue) -> None:
        """Give the queue's lock back."""

    def dropped(self, stream: "QueueStream") -> None:
        """The stream is over."""


class QueueStream:
    """A queue of ours, from its assignment until `receive` raises. Made inside a running loop; `begin` sets it going."""

    def __init__(self, owner: Owner, queue: Queue, subscription: Subscription, puller: Puller) -> None:
        self.queue = queue
        self.position = 0
        """The offset that the next pull asks for."""
        self.first_offset = self.end_offset = 0
        """Where the queue began and ended when the last answer came."""
        self.locked_at: float | None = None
        """Loop time before the last lock; None where no lock is needed."""
        self.answered_ms = 0
        """When the last answer came, ms since the epoch."""
        self.gap_at: int | None = None
        """The offset at which it ended with a GapError."""
        self._owner, self._puller, self._subscription = owner, puller, subscription
        self._unfiltered = subscription.kind == TAG and not subscription.tags
        self._waiting: deque[Pulled] = deque()
        self._account = Account()
        self._acked = self._handed = 0
        self._sent: int | None = None
        """The offset that the store was told last."""
        self._saved: int | None = None
        """The offset that the store is known to have."""
        self._first_start = False
        """We chose the start, and nothing has been read yet."""
        self._at_end = False
        self._nulls = 0
        self._backoff = Backoff(FIRST_WAIT_S, MOST_WAIT_S)
        self._ended: MqbridgeError | None = None
        self._final = self._taken_away = False
        self._changed = asyncio.Event()
        self._quiet = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._carriers = Carriers()
        self._loop = asyncio.get_running_loop()

    def __str__(self) -> str:
        return f"{shown(self.queue)} for {self._owner.name}"

    @property
    def revoked(self) -> bool:
        """Whether it was taken away or given back."""
        return isinstance(self._ended, LaneRevoked)

    @property
    def caught_up(self) -> bool:
        """The last answer said that nothing comes after it, and all that came was taken."""
        return self._at_end and not self._waiting

    @property
    def committed(self) -> int:
        """The offset below which everything is acknowledged."""
        return self._acked

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be taken."""
        return self._account.held

    def begin(self, offset: int, *, first_start: bool) -> None:
        """Start pulling. `first_start`: there was no offset to go on from; the start we chose is committed."""
        self._first_start = first_start
        self._sent = self._saved = None if first_start else offset
        self._owner.budget.queues += 1
        self._go_to(offset)

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self) -> Pulled | None:
        """What one pull brought, if something waits."""
        if not self._waiting or not self._lock_holds():
            return None
        pulled = self._waiting.popleft()
        self._handed = pulled.next
        self._owner.budget.taken(self._account, pulled.size)
        return pulled

    async def receive(self) -> Pulled:
        """What the next pull brought; waits. Raises LaneRevoked, GapError, or the ClusterError that ended the queue."""
        while True:
            pulled = self.take()
            if pulled is not None:
                return pulled
            if self._ended is not None:
                raise self._ended
            await self._wait()

    async def changed(self, timeout: float) -> None:
        """Wait until there is something to take or something else has happened, at most `timeout` seconds."""
        if not self._waiting and self._ended is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wait(), timeout)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _lock_holds(self) -> bool:
        return self.locked_at is None or self._loop.time() - self.locked_at < VALID_S

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def commit(self, offset: int) -> None:
        """Everything below `offset` is consumed; the store hears of it with the next pull or within seconds.

        What was not handed out (any more, after a seek) and what is committed already changes nothing.
        """
        if self._acked < offset <= self._handed and not self._final:
            self._acked = offset
            self._follow()

    def _follow(self) -> None:
        """When nothing is out, what was left out by a filter is done with as well."""
        if self._acked == self._handed and not self._waiting:
            self._acked = self._handed = self.position
            self._quiet.set()

    def due(self) -> int | None:
        """The offset to tell the store, if it has not been told."""
        return self._acked if self._acked != self._sent and not self._final and self._lock_holds() else None

    def told(self, offset: int | None) -> None:
        """The store is being told this one; None: it could not be told."""
        self._sent = offset

    async def _save(self) -> None:
        """Tell the store and wait for its answer. A failure is logged: what was read after the last commit comes again."""
        await self._carriers.wait(REVOKED_S if self._taken_away else OVERTAKEN_S)

        async def save() -> int:
            offset = self._acked
            await self._owner.store.save(self.queue, offset)
            return offset

        try:
            self._sent = self._saved = await twice(save)
        except (ClusterError, ProtocolError) as error:
            log.warning("%s: offset %d could not be committed: %s", self, self._acked, error)

    # --- moving -----------------------------------------------------------------------------------------------------

    async def seek(self, offset: int) -> None:
        """Go on with `offset`. Back to what was handed out and not committed changes no commit; anywhere else commits it."""
        if self._ended is not None and (self.revoked or self._final):
            return
        if not self.rewind(offset):
            self._ended = None
            self._go_to(offset)
            await self._save()

    def rewind(self, offset: int) -> bool:
        """Hand out again from `offset` on, if that was handed out and is not committed; False, and nothing happens, if not."""
        if self.revoked or self._final or not self._acked <= offset <= self._handed:
            return False
        acked, self._ended = self._acked, None
        self._go_to(offset)
        self._acked = acked
        return True

    async def reset(self, offset: int, why: str) -> None:
        """The broker says where to go on."""
        if not self.revoked and not self._final:
            log.warning("%s: goes on at offset %d instead of %d, %s", self, offset, self.position, why)
            self._ended = None
            self._go_to(offset)
            await self._save()

    def _go_to(self, offset: int) -> None:
        """Forget what waits and what is being asked for; begin again at `offset`."""
        self._drop()
        self.gap_at = None
        self.position = self._acked = self._handed = offset
        self._at_end = False
        self._nulls = 0
        self._halt()
        self._task = spawn(self._pull_on(), f"rocketmq pulls of {self}")

    def _halt(self) -> None:
        """Pull no more; an answer that still comes is dropped."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            self._carriers.end(task)

    def _drop(self) -> None:
        while self._waiting:
            self._owner.budget.taken(self._account, self._waiting.popleft().size)

    # --- pulling ----------------------------------------------------------------------------------------------------

    async def _pull_on(self) -> None:
        """Pull until it ends, or a newer task of this kind has taken over."""
        me = asyncio.current_task()
        while self._ended is None and self._task is me:
            try:
                answer = await self._pull()
                if self._task is me:
                    await self._took(answer)
            except GapError as error:
                self._fail(error)
            except (ClusterError, ProtocolError) as error:
                if self._task is me:
                    await self._failed(error)

    async def _pull(self) -> PullAnswer:
        owner = self._owner
        hold = self._at_end
        reserved = await owner.budget.reserve(self._account, idle=hold)
        try:
            commit = self._acked if owner.store.piggyback and self._lock_holds() else None
            asked_at = self._loop.time()
            if commit is not None:
                self._sent = commit
                self._carriers.sail(hold=hold)
            answer = await self._puller.pull(self.position, commit, hold=hold)
        finally:
            self._carriers.land()
            owner.budget.settle(reserved)
        self.answered_ms = time.time_ns() // 1_000_000
        if hold and answer.kind == pulling.NOTHING and self._loop.time() - asked_at < HELD_S:
            await asyncio.sleep(HELD_S)
        return answer

    async def _took(self, answer: PullAnswer) -> None:
        """Append what came, and see where that leaves us. Raises what is wrong with the answer."""
        self.first_offset, self.end_offset = answer.first, answer.end
        if answer.kind == pulling.MOVED:
            await self._moved(answer)
            return
        if answer.kind == pulling.FOUND:
            await self._append(answer)
        elif not await self._plausible(answer):
            return
        self._first_start = False
        self._nulls = 0
        self._backoff.reset()
        self.position = answer.next
        self._at_end = answer.next >= answer.end
        self._follow()
        self._changed.set()

    async def _append(self, answer: PullAnswer) -> None:
        """Raises RemoteProtocolError for an answer that makes no sense, GapError when the broker left something out."""
        if answer.next <= self.position or not answer.body:
            raise RemoteProtocolError(
                f"an answer with {len(answer.body)} bytes for offset {self.position} of {self} goes on at {answer.next}"
            )
        pulled = Pulled(self.queue, answer.body, self.position, answer.next, self._subscription.tags)
        missing = pulled.first_stored - self.position
        if missing > 0 and self._unfiltered and not self._first_start and not await self._owner.compacted(self.queue):
            raise self._gap(pulled.first_stored, "the broker deleted them before they were read")
        self._waiting.append(pulled)
        self._owner.budget.received(self._account, pulled.size)

    async def _plausible(self, answer: PullAnswer) -> bool:
        """Whether an answer without messages may be believed; if not, the same offset is asked for again."""
        lost = answer.remark in (pulling.FOUND_NULL, pulling.REMOVING) and answer.next > self.position and not self._first_start
        if not lost and answer.next >= self.position and (answer.next > self.position or answer.next >= answer.end):
            return True
        self._nulls += 1
        if lost and self._nulls > NULL_TRIES:
            raise self._gap(answer.next, f"the broker says {answer.remark}")
        await asyncio.sleep(self._backoff.delay())
        return False

    async def _moved(self, answer: PullAnswer) -> None:
        """Answer 21: a reset by an administrator, our own start that is gone already, or messages that are lost."""
        if answer.remark == pulling.RESET or answer.first <= self.position <= answer.end:
            await self.reset(answer.next, "as an administrator has set the group's offset")
        elif self._first_start:
            log.info("%s: begins at offset %d, since %d is gone", self, answer.next, self.position)
            self._go_to(answer.next)
        elif answer.next > self.position:
            raise self._gap(answer.next, "they were deleted before they were read; give the broker a longer fileReservedTime")
        else:
            raise GapError(
                f"{self} ends at offset {answer.next}, reading was to go on at {self.position}: the topic was made anew, or the "
                "broker lost what it had not written to disk. Reset the group's offset to go on"
            )

    def _gap(self, next_: int, why: str) -> GapError:
        return GapError(f"{self} has a gap: offsets {self.position} to {next_ - 1} were not read, {why}", (next_,))

    # --- what goes wrong --------------------------------------------------------------------------------------------

    async def _failed(self, error: ClusterError | ProtocolError) -> None:
        """Wait, tell the broker our subscriptions, or end."""
        self._sent = None
        if not isinstance(error, ServerRefused):
            await self._pause(error)
        elif error.code == Status.FLOW_CONTROL:
            await asyncio.sleep(FLOW_CONTROL_WAIT_S)
        elif error.code in _UNKNOWN_SUBSCRIPTION:
            log.info("%s: a heartbeat goes first: %s", self, error)
            await self._owner.announce()
            await asyncio.sleep(SUBSCRIPTION_WAIT_S)
        elif error.failure is Failure.FATAL:
            self._fail(error)
        else:
            await self._pause(error)

    async def _pause(self, error: MqbridgeError) -> None:
        delay = self._backoff.delay()
        log.warning("%s: pulling goes on in %.1f s: %s", self, delay, error)
        if isinstance(error, ClusterError) and error.failure is Failure.REFRESH:
            self._owner.look_again()
        await asyncio.sleep(delay)

    def _fail(self, error: MqbridgeError) -> None:
        """It ends by itself; what waits can still be taken."""
        if self._ended is None:
            log.error("%s", error)
            self._ended = error
            self.gap_at = self.position if isinstance(error, GapError) else None
        self._changed.set()

    # --- ending -----------------------------------------------------------------------------------------------------

    async def release(self) -> None:
        """Give the queue back: what is acknowledged is committed, the rest will be delivered again."""
        if self._stop(f"{self} was given back"):
            await self._give_back()

    async def revoke(self) -> None:
        """It was taken away. With a lock, what is out gets a moment to be acknowledged before another member may read on."""
        if not self._stop(f"{self} now belongs to another consumer"):
            return
        if self.locked_at is not None and self._acked != self._handed:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), SETTLE_S)
        self._taken_away = True
        await self._give_back()

    def lock_lost(self) -> None:
        """Another member may have the lock and read on: nothing may be committed any more."""
        if self._stop(f"{self} was lost: its lock could not be renewed"):
            self._final = True
            self._owner.dropped(self)

    def _stop(self, why: str) -> bool:
        """Stop pulling and handing out; False when that is so already."""
        if self.revoked:
            return False
        self._ended = LaneRevoked(why)
        self._drop()
        self._halt()
        self._owner.budget.queues -= 1
        self._changed.set()
        return True

    async def _give_back(self) -> None:
        self._final = True
        if self._acked != self._saved:
            await self._save()
        await self._carriers.cancel()
        if self.locked_at is not None:
            await self._owner.unlock(self.queue)
        self._owner.dropped(self)
