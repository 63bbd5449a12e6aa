"""Messages that wait: they are stored in parking topics of the backing until they are due.

Some wait long for one group, and are acknowledged in their own topic meanwhile. Others were sent with a delay to a system that
has none, and wait for all groups (see `deposits`): clients get the answer to their send when they are stored in a level.

So they hold neither memory nor the position of their group, and no gateway has to live until they are due. There is one topic
for each length of time (a level, see `parked`), which all gateways with the same `parking` share: one of them at a time reads it,
holds the oldest message until its time has passed, and stores it where it belongs then. That is another level, or, when it is due
soon, the topic of what is due for its group: `{parking}-due-` and a digest. Subscriptions of the group read it beside their own.
A deposit goes to its own topic, once it is due to the second: what it has left after a level rolls down the levels.

    QUEUED    a subscription has taken it and handed it over
    PARKED    it is stored in a level, and acknowledged in its own topic
    DUE       it is stored in the topic of what is due, and acknowledged in its level

        (stored)             QUEUED -> PARKED
        (not stored)         it is given back to its feed, and taken again later
        (time of its level)  PARKED -> PARKED, in a level for the rest; PARKED -> DUE
        (group was moved)    PARKED -> gone: the message comes from its own topic again, or is skipped

Every step stores before it acknowledges, so a crash may make a message come twice, and loses none. A deposit whose topic, or
partition, does not exist any more when it is due becomes a dead letter: its topic is never made again by this.

A group that is moved or deleted gets nothing that was parked before. Its gateway publishes a number before it moves the group,
and afterwards that this move is done; numbers ascend. Each parked message carries the newest number that was begun when it was
parked, and is dropped if a later one is done: so a move that fails drops nothing, nor does one drop what the next gateway of the
partition parks. What this rests on: whoever parks reads the newest number first, and nothing of the group is parked here while
it is moved.

What this rests on further: lanes of the backing deliver in order, and it keeps messages longer than the longest level.
"""

import asyncio
import hashlib
import logging
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, cast

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import UnitFormat, batch_of_units
from mqbridge.adapter.inbound import AnnouncesRelease, Inbound, InboundLane, InboundSpec, Sharing, Start
from mqbridge.adapter.names import NameRule
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure, GapError, LaneRevoked, MqbridgeError, RefusalReason, RequestRefused
from mqbridge.groups.membership import SharedMembership
from mqbridge.listener.definitions import Definitions
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.deposits import STORED_AT_ONCE, Deposit, Deposits, TargetGone, check_target
from mqbridge.listener.deposits import Done as DepositDone
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import Groups, Partitions
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.limits import LANE_BYTES, InFlightBytes, limited
from mqbridge.listener.parked import LEVELS_S, MAX_FIELD, InvalidParked, Parked, unwrap, wrap
from mqbridge.listener.publishers import index_of
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import NO_SOURCE, Batch, Message, Share, Unit
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

HOLD_S = 60.0
"""Longest time for which a message that is not due is held in memory; one that is due later is parked."""
LOOK_S = 60.0
"""Time between two looks for parking topics that other gateways have made."""
REQUEST_S = 60.0
"""Maximum time until messages are parked; then they are given back, and parked later."""
RETRY_S = 30.0
"""Pause before a message that could not be parked is taken again."""
CLOCK_S = 5.0
"""Longest sleep until the clock is looked at again: it may be set meanwhile."""
MAX_OUTBOUNDS = 100
"""Maximum number of outbounds that are kept open."""
LANE_PAUSE_S = 5.0
"""Pause before a level is read again that could not be read."""
BEGUN, DONE = b"begun", b"done"
"""Versions under which moves of a group are published: the number of the newest that was begun, and of the newest one done."""
RELEASE_WAIT_S = 5.0
"""How long a level that another gateway gets is kept, so that what is being stored can be acknowledged."""
ATTEMPTS = 3
"""Attempts to store what is due; then it goes to the end of its level, or a deposit to another one, so that others get theirs."""
DUE_AGAIN_S = 5.0
"""Pause after which a deposit is due again that could not be stored in its topic."""
_DEFAULT_PARKING = re.compile(rf"mqbridge-.+-(?:{'|'.join(LEVELS_S)}|moves|due-[0-9a-f]{{16}})")
"""Names of parking topics of a listener whose configuration does not name them; `.+` is the name of the listener."""


class Target(NamedTuple):
    """Where messages go that are due, or wait on.

    partition  the index of the partition, as clients count them
    is_own     True for a parking topic, which is made if it does not exist; False for a topic of clients
    """

    topic: str
    partition: int
    is_own: bool = True


class Waiting(NamedTuple):
    """A unit that is to be parked, with its feed, and the number of partitions of its topic."""

    feed: Feed
    delivered: Delivered
    parked: Parked
    partitions: int


def parking_name(rule: NameRule, name: str) -> str:
    """Return a name as the system accepts it: as it is, if it does."""
    return rule.escape(name) if rule.problem(name) else name


def is_default_parking_topic(name: str) -> bool:
    """Return True for the name of a parking topic of any listener whose configuration does not name them otherwise."""
    return _DEFAULT_PARKING.fullmatch(name) is not None


class Parking:
    """See the module. Call `start`, and `close`."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        unit_format: UnitFormat | None,
        groups: Groups,
        partitions: Partitions,
        moves: Definitions,
        open_dead_letters: Callable[[], Awaitable[DeadLetters]],
        member: str,
        in_flight: InFlightBytes,
    ) -> None:
        """`name` is what the names of its topics, and of its group, begin with; `member` names this gateway for operators.

        `in_flight` counts the bytes of deposits that are not stored yet.

        `moves` are definitions of a topic of their own, in which moves of groups are published; they are started and closed here.
        Without `unit_format`, the format of the clients' units, nothing is parked.
        """
        rule = cluster.capabilities.topic_name
        self.parked = self.brought_back = self.dropped = 0
        """Totals of messages: parked (deposits, too), stored as due, and dropped because their group was moved."""
        self._cluster, self._format, self._moves = cluster, unit_format, moves
        self._groups, self._partitions = groups, partitions
        self._open_dead_letters, self._member = open_dead_letters, member
        self._name, self._group = name, parking_name(cluster.capabilities.group_name, name)
        self._levels = {level: parking_name(rule, f"{name}-{level}") for level in LEVELS_S}
        self._known: set[str] = set()
        """The parking topics that exist."""
        self._counts: dict[str, int] = {}
        """Their numbers of partitions, as far as they were asked for."""
        self._watchers: set[Callable[[], None]] = set()
        self._queue: dict[str, list[Waiting]] = {}
        """Units that wait to be parked, by level."""
        self._deposits = Deposits(self._store_deposits, in_flight)
        self._moving: Counter[str] = Counter()
        """Number of moves under way, by the topic of what is due."""
        self._outbounds: dict[str, Outbound] = {}
        """Open outbounds by topic, the one that was used last at the end."""
        self._outbound_lock = asyncio.Lock()
        """Held while the outbound of a parking topic is opened."""
        self._finding = KeyedLocks[str]()
        """Held while a topic of clients is looked for, and its outbound is opened."""
        self._memberships: dict[str, SharedMembership] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers that make a level be read again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    @property
    def is_supported(self) -> bool:
        """True if messages can be parked: a system that delays messages by itself needs no parking."""
        capabilities = self._cluster.capabilities
        return self._format is not None and not capabilities.delay and capabilities.create_topics

    # --- the life of the service ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the moves, then the levels that exist, and those that are made later. Raises ClusterError."""
        if self.is_supported and not self._is_open:
            await self._moves.start()
            self._is_open = self._deposits.is_open = True
            self._spawn(self._look_again_and_again(), f"parking topics of {self._name}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_again_and_again(self) -> None:
        while True:
            try:
                await self._look()
            except MqbridgeError as error:
                log.warning("the parking topics of %s are not known now: %s", self._cluster.name, error)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        """Find out which parking topics there are. Raises ClusterError."""
        levels, known = set(self._levels.values()), set(self._known)
        async with limited("looking for parking topics"):
            if self._cluster.capabilities.list_topics:
                found = set(await self._cluster.topics())
                begin = self._due_name("", "")[: -len(_digest("", ""))]
                found = {name for name in found if name in levels or name.startswith(begin)}
            else:
                found = {name for name in levels | self._known if await self._cluster.describe(name) is not None}
        for name in known - found:  # others have deleted it
            self._lost(name)
        for name in found - self._known:
            self._found(name)

    def _lost(self, name: str) -> None:
        """Take note that the topic of what is due for a group does not exist any more; a level that is deleted comes again."""
        if name not in self._levels.values():
            self._known.discard(name)
            self._counts.pop(name, None)

    def _found(self, name: str) -> None:
        """Take note of a parking topic that exists: read it if it is a level, and tell the subscriptions."""
        self._known.add(name)
        for level, topic in self._levels.items():
            if topic == name and level not in self._memberships and self._is_open:
                self._spawn(self._join(level), f"join of {topic}")
        for wake in self._watchers:
            asyncio.get_running_loop().call_soon(wake)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` soon after a parking topic was found; return the function that ends this."""
        self._watchers.add(wake)
        return lambda: self._watchers.discard(wake)

    async def close(self, deadline: float | None = None) -> None:
        """Stop; what is parked stays parked. `deadline` is a loop time."""
        self._is_open, deadline = False, resolve_deadline(deadline)
        for timer in self._timers.values():
            timer.cancel()
        await self._deposits.close()
        await cancel(*self._tasks)
        memberships, self._memberships = list(self._memberships.values()), {}
        await self._gather(each.close(deadline) for each in memberships)  # first: lanes may open outbounds until then
        outbounds, self._outbounds = list(self._outbounds.values()), {}
        await self._gather([*(each.close(deadline) for each in outbounds), self._moves.close(deadline)])

    async def _gather(self, closes: Iterable[Awaitable[None]]) -> None:
        for failure in await asyncio.gather(*closes, return_exceptions=True):
            if isinstance(failure, Exception):
                log.warning("a part of the parking of %s did not close: %s", self._cluster.name, failure)

    # --- what subscriptions do ------------------------------------------------------------------------------------------

    def _due_name(self, topic: str, group: str) -> str:
        return parking_name(self._cluster.capabilities.topic_name, f"{self._name}-due-{_digest(topic, group)}")

    async def due_topic(self, topic: ListenedTopic, group: str) -> ListenedTopic | None:
        """Return the topic of what is due for a group; None if nothing was ever parked for it. Raises ClusterError."""
        name = self._due_name(topic.backing, group)
        if name not in self._known:
            return None
        async with limited(f"finding what is due for group {group}"):
            described = await self._cluster.describe(name)
        if described is None:
            self._lost(name)
            return None
        partitions = {index: partition for partition, index in described.index_by_partition.items()}
        return ListenedTopic(f"what is due of {topic.name}", name, partitions, is_partitioned=True, is_due=True)

    def park(self, feed: Feed, delivered: Delivered, topic: ListenedTopic, partition: int, due_ms: int) -> None:
        """Park a unit that was taken from the feed of a group: it is acknowledged when it is stored, or given back."""
        parked = Parked(topic.backing, partition, feed.key.group, due_ms, _now_ms(), 0)
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._start_parking)
        self._queue.setdefault(parked.level_at(parked.parked_ms), []).append(Waiting(feed, delivered, parked, topic.count))

    def deposit(self, topic: ListenedTopic, partition: int, unit: Unit, due_ms: int, done: DepositDone) -> None:
        """Keep a unit that is not in its topic until it is due, without waiting; then it is stored in this partition.

        `done` is called once, after this returns: with None when the unit is stored in a level, otherwise with the problem.
        """
        now_ms = _now_ms()
        parked = Parked(topic.backing, partition, "", min(max(due_ms, 0), MAX_FIELD), now_ms, 0)
        self._deposits.add(parked.level_at(now_ms), Deposit(parked, unit, done))

    async def _store_deposits(self, level: str, deposits: Sequence[Deposit]) -> Sequence[ClusterError | None]:
        """Store deposits in a level; return for each why it is not stored. Raises MqbridgeError, TimeoutError."""
        topic = self._levels[level]
        async with asyncio.timeout(REQUEST_S):
            outbound = await self._outbound(topic, 1)
            now_ms = _now_ms()
            messages = [wrap(each.parked._replace(parked_ms=now_ms), each.unit) for each in deposits]
            failures = await self._sent(topic, outbound, 0, Share(Batch.of(messages)))
        problems: list[ClusterError | None] = [None] * len(deposits)
        for failure in failures:
            problems[failure.index] = ClusterError(failure.reason, failure.failure_kind)
        self.parked += problems.count(None)
        return problems

    def _start_parking(self) -> None:
        queue, self._queue = self._queue, {}
        for level, waiting in queue.items():
            for begin in range(0, len(waiting), STORED_AT_ONCE):
                part = waiting[begin : begin + STORED_AT_ONCE]
                if self._is_open:
                    self._spawn(self._park(level, part), f"parking for {level}")
                else:
                    _give_back(part)

    async def _park(self, level: str, waiting: Sequence[Waiting]) -> None:
        """Store units in a level, and acknowledge them; give back those that are not stored."""
        stored: list[Waiting] = []
        try:
            async with asyncio.timeout(REQUEST_S):
                stored = await self._store_parked(level, waiting)
        except (MqbridgeError, TimeoutError) as error:
            log.warning("%d messages cannot be parked now, which is tried again: %s", len(waiting), error or "no answer")
        finally:  # cancelled, too
            for each in stored:
                each.feed.acknowledge(each.delivered)
            done = {id(each) for each in stored}
            _give_back([each for each in waiting if id(each) not in done])

    async def _store_parked(self, level: str, waiting: Sequence[Waiting]) -> list[Waiting]:
        """Store units in a level; return those that are stored. Raises ClusterError, RequestRefused."""
        for due, partitions in {
            self._due_name(each.parked.topic, each.parked.group): each.partitions for each in waiting
        }.items():
            await self._ensure(due, partitions)
        outbound = await self._outbound(self._levels[level], 1)
        await self._moves.catch_up()
        now_ms = _now_ms()
        sent: list[Waiting] = []
        messages: list[Message] = []
        for each in waiting:
            delivered, parked = each.delivered, each.parked
            content = delivered.unit or delivered.message
            is_moving = self._due_name(parked.topic, parked.group) in self._moving
            if content is not None and delivered.generation == each.feed.generation and not is_moving:
                sent.append(each)
                messages.append(wrap(parked._replace(parked_ms=now_ms, moved_ms=self._begun(parked)), content))
        if not sent:
            return []
        failures = await self._sent(self._levels[level], outbound, 0, Share(Batch.of(messages)))
        if failures:
            log.warning("%d messages cannot be parked: %s", len(failures), failures[0].reason)
        failed = {failure.index for failure in failures}
        stored = [each for index, each in enumerate(sent) if index not in failed]
        self.parked += len(stored)
        return stored

    def _begun(self, parked: Parked) -> int:
        """Return the number of the last move of a group that was begun, as far as this gateway knows; 0 if none was."""
        move = self._moves.find(self._move_name(parked), BEGUN)
        return 0 if move is None else move.registered_ms

    def _is_void(self, parked: Parked) -> bool:
        """Return True if the group was moved since the message was parked; deposits are of no group."""
        if parked.is_deposit:
            return False
        move = self._moves.find(self._move_name(parked), DONE)
        return move is not None and move.data.isdigit() and parked.moved_ms < int(move.data)

    def _move_name(self, parked: Parked) -> str:
        return f"{self._due_name(parked.topic, parked.group)}/{parked.partition}"

    @asynccontextmanager
    async def moving(self, topic: ListenedTopic, group: str, partitions: Collection[int]) -> AsyncIterator[None]:
        """Let the body move a group in these partitions: what was parked before, or is due already, does not come any more.

        Raises RequestRefused, ClusterError. If it does so after the body, what was parked before may still come.
        """
        name = self._due_name(topic.backing, group)
        self._moving[name] += 1
        try:
            await self._find(name)
            names = [f"{name}/{partition}" for partition in partitions] if name in self._known else []
            numbers = await self._publish(names, BEGUN, [b""] * len(names))
            yield
            if numbers:
                await self._publish(names, DONE, [b"%d" % number for number in numbers])
                await self._skip_due(topic, group, partitions)
        finally:
            self._moving[name] -= 1
            if not self._moving[name]:
                del self._moving[name]

    async def _find(self, topic: str) -> None:
        """Take note of a parking topic that another gateway may have made. Raises ClusterError."""
        if self.is_supported and topic not in self._known:
            async with limited(f"looking for {topic}"):
                if await self._cluster.describe(topic) is not None:
                    self._found(topic)

    async def _publish(self, names: Sequence[str], version: bytes, data: Sequence[bytes]) -> list[int]:
        """Publish moves, and return their numbers; [] if there are too many of them. Raises RequestRefused."""
        if names:
            await self._moves.catch_up()
        try:
            return [(await self._moves.add(name, version, 0, each)).registered_ms for name, each in zip(names, data, strict=True)]
        except RequestRefused as error:
            if error.reason is not RefusalReason.NOT_ALLOWED:
                raise
            log.warning("messages that were parked before a group was moved may still come: %s", error)
            return []

    async def _skip_due(self, topic: ListenedTopic, group: str, partitions: Collection[int]) -> None:
        """Move a group to the end of what is due for it. Raises ClusterError."""
        if (due := await self.due_topic(topic, group)) is None:
            return
        ends = {index: (await self._partitions.bounds(due, index)).next for index in partitions if index in due.partitions}
        try:
            await self._groups.move(due, group, ends)
        except RequestRefused as error:
            log.warning("what was due for group %s before it was moved may still come: %s", group, error)

    async def delete_group(self, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
        """Delete a group, in one partition or as a whole, with what is parked for it. Raises RequestRefused, ClusterError."""
        async with self.moving(topic, group, topic.partitions if partition is None else [partition]):
            await self._groups.delete(topic, group, partition)
        if self._due_name(topic.backing, group) in self._known and not await self._groups.exists(topic, group):
            await self._forget(topic, group)

    @asynccontextmanager
    async def deleting(self, topic: ListenedTopic) -> AsyncIterator[None]:
        """Let the body delete a topic. Its groups, and what is parked for them, go with it, and stay if the body fails.

        Raises RequestRefused, ClusterError.
        """
        try:
            groups = await self._groups.names(topic)
        except RequestRefused as error:
            log.debug("the groups of %s cannot be listed: %s", topic.name, error)
            groups = []
        await self._groups.leave(topic)
        if (outbound := self._outbounds.get(topic.backing)) is not None:
            await self._close_outbound(topic.backing, outbound)
        async with AsyncExitStack() as moves:
            for group in groups:
                await moves.enter_async_context(self.moving(topic, group, topic.partitions))
            yield
        await self._groups.forget(topic)
        for group in groups:
            try:
                await self._forget(topic, group)
            except MqbridgeError as error:
                log.warning("what was parked for group %s of %s, which is deleted, is left: %s", group, topic.name, error)

    async def _forget(self, topic: ListenedTopic, group: str) -> None:
        """Delete the topic of what is due for a group that was deleted. Raises ClusterError."""
        due = await self.due_topic(topic, group)
        if due is None or not self._cluster.capabilities.delete_topics:
            return
        await self._groups.forget(due)
        self._lost(due.backing)
        if (outbound := self._outbounds.get(due.backing)) is not None:
            await self._close_outbound(due.backing, outbound)
        async with limited(f"deleting {due.backing}"):
            await self._cluster.delete(due.backing)

    # --- levels ---------------------------------------------------------------------------------------------------------

    async def _join(self, level: str) -> None:
        """Become a reader of a level; one of all that are reads it."""
        supported = self._cluster.capabilities.sharing
        spec = InboundSpec(
            (self._levels[level],),
            self._group,
            Start.EARLIEST,
            max_bytes=LANE_BYTES,
            sharing=Sharing.FAILOVER if Sharing.FAILOVER in supported else None,
            member=self._member,
            sent_back=False,
            release_wait_s=RELEASE_WAIT_S,
        )
        pauses = Backoff()
        while True:
            membership = self._memberships[level] = SharedMembership(self._cluster, spec, partial(self._run_lane, level))
            try:
                await membership.join()
            except MqbridgeError as error:
                log.warning("messages that wait in %s are not read now: %s", self._levels[level], error)
                await asyncio.sleep(pauses.delay())
            else:
                return

    async def _run_lane(self, level: str, lane: InboundLane, inbound: Inbound) -> None:  # noqa: ARG002 - as `RunLane` is called
        """Bring back what has waited long enough, until the lane is revoked."""
        try:
            while True:
                try:
                    batch = await lane.receive()
                except GapError as gap:
                    if gap.resume is None:
                        raise ClusterError(str(gap)) from gap
                    log.warning("messages that waited in %s are lost: %s", self._levels[level], gap)
                    await lane.seek(gap.resume)
                    continue
                await self._bring_back(level, lane, batch)
        except LaneRevoked:
            return
        except MqbridgeError as error:
            log.warning("messages that wait in %s are not read now, which is tried again: %s", self._levels[level], error)
            self._read_later(level, str(error))
        except Exception as bug:  # it must not look like a level without messages
            log.exception("messages that wait in %s are not read now, which is tried again", self._levels[level])
            self._read_later(level, repr(bug))

    def _read_later(self, level: str, problem: str) -> None:
        """Join anew after a pause: not every group assigns a partition again that was released."""
        self._timers[level] = asyncio.get_running_loop().call_later(LANE_PAUSE_S, self._read_again, level, problem)

    def _read_again(self, level: str, problem: str) -> None:
        if (membership := self._memberships.get(level)) is not None:
            membership.join_again(problem)

    async def _bring_back(self, level: str, lane: InboundLane, batch: Batch) -> None:
        """Bring back the messages of a batch when their time has come. Raises LaneRevoked, ClusterError."""
        messages, loop = batch.messages, asyncio.get_running_loop()
        latest = loop.time() + LEVELS_S[level]
        """Loop time when all of them have waited long enough, whatever the clock of the gateway was that parked them."""
        at = 0
        while at < batch.count:
            end = at
            while end < batch.count and end - at < STORED_AT_ONCE and _wait_s(level, messages[end], latest - loop.time()) <= 0:
                end += 1
            if end == at:
                await _sleep(lane, _wait_s(level, messages[at], latest - loop.time()))
                continue
            _check_kept(lane)
            await self._store_again(level, lane, messages[at:end])
            at = end
            if at == batch.count:
                lane.acknowledge(batch)
            else:
                lane.acknowledge(batch, range(at))

    async def _store_again(self, level: str, lane: InboundLane, messages: Sequence[Message]) -> None:
        """Store messages where they go next; those of groups that were moved are dropped. Raises LaneRevoked, MqbridgeError."""
        unwrapped: list[tuple[Parked, Unit | Message]] = []
        for message in messages:
            try:
                unwrapped.append(unwrap(message))
            except InvalidParked as error:
                await self._put_away(self._name, [message], [MessageFailure(0, Failure.REFUSED, str(error))])
        if any(not parked.is_deposit for parked, _ in unwrapped):
            await self._moves.catch_up()
        now_ms = _now_ms()
        later: dict[str, list[Message]] = {}
        due: dict[Target, list[tuple[Parked, Unit | Message]]] = {}
        for found, content in unwrapped:
            parked = found._replace(parked_ms=now_ms)
            if self._is_void(parked):
                self.dropped += 1
            elif (parked.due_ms - now_ms) / 1000 > (0.0 if parked.is_deposit else HOLD_S):
                later.setdefault(parked.level_at(now_ms), []).append(wrap(parked, content))
            else:
                due.setdefault(self._target(parked), []).append((parked, content))
        for next_level, parked_messages in later.items():
            await self._store(lane, self._levels[next_level], 0, parked_messages)
        for target, waiting in due.items():
            for kind in (Unit, Message):
                chosen = [(parked, content) for parked, content in waiting if isinstance(content, kind)]
                left = chosen if target.topic in self._moving else await self._store_due(lane, target, chosen)
                await self._keep_waiting(level, lane, left)

    def _target(self, parked: Parked) -> Target:
        """Return where a message goes that is due."""
        if parked.is_deposit:
            return Target(parked.topic, parked.partition, is_own=False)
        return Target(self._due_name(parked.topic, parked.group), parked.partition)

    async def _keep_waiting(self, level: str, lane: InboundLane, left: Sequence[tuple[Parked, Unit | Message]]) -> None:
        """Store what is due, and was not stored where it goes: at the end of its level, and deposits for a while."""
        again_ms = _now_ms() + round(DUE_AGAIN_S * 1000)
        waiting: dict[str, list[Message]] = {}
        for parked, content in left:
            if parked.is_deposit:
                later = parked._replace(due_ms=again_ms)
                waiting.setdefault(later.level_at(_now_ms()), []).append(wrap(later, content))
            else:
                waiting.setdefault(level, []).append(wrap(parked, content))
        for next_level, messages in waiting.items():
            await self._store(lane, self._levels[next_level], 0, messages)

    async def _store_due(
        self, lane: InboundLane, target: Target, waiting: Sequence[tuple[Parked, Unit | Message]]
    ) -> Sequence[tuple[Parked, Unit | Message]]:
        """Store units, or messages, where they go; return those that are not stored after ATTEMPTS. Raises LaneRevoked.

        The group may have been moved since they were read, or since the last attempt: then they are dropped.
        """
        pauses = Backoff()
        for _ in range(ATTEMPTS):
            kept = [each for each in waiting if not self._is_void(each[0])]
            self.dropped += len(waiting) - len(kept)
            if not kept:
                return ()
            left, problem = await self._try_to_store(target, [content for _, content in kept])
            again = {id(content) for content in left}
            waiting = [each for each in kept if id(each[1]) in again]
            self.brought_back += len(kept) - len(waiting)
            if not waiting:
                return ()
            log.warning("messages that were parked cannot be stored in %s, which is tried again: %s", target.topic, problem)
            await _sleep(lane, pauses.delay())
        return waiting

    async def _store(self, lane: InboundLane, topic: str, partition: int, messages: Sequence[Message]) -> None:
        """Store messages in a level, trying again and again. Raises LaneRevoked when the lane is given up."""
        pauses, left = Backoff(), cast("Sequence[Unit | Message]", messages)
        while left:
            left, problem = await self._try_to_store(Target(topic, partition), left)
            if left:
                log.warning("messages that were parked cannot be stored in %s, which is tried again: %s", topic, problem)
                await _sleep(lane, pauses.delay())

    async def _try_to_store(self, target: Target, contents: Sequence[Unit | Message]) -> tuple[Sequence[Unit | Message], str]:
        """Store units, or messages; return those that are not stored, not even as dead letters, and why."""
        batch = self._batch_of(contents)
        failures: Sequence[MessageFailure]
        try:
            outbound, index = await self._outbound_of(target)
            failures = await self._sent(target.topic, outbound, index, Share(batch))
        except TargetGone as gone:
            failures = [MessageFailure(index, Failure.REFUSED, str(gone)) for index in range(batch.count)]
        except MqbridgeError as error:
            return contents, str(error)
        if not failures:
            return (), ""
        ends = list(accumulate(each.message_count if isinstance(each, Unit) else 1 for each in contents))
        refused = [failure for failure in failures if failure.failure_kind is Failure.REFUSED]
        left = {bisect_right(ends, failure.index) for failure in failures if failure.failure_kind is not Failure.REFUSED}
        try:
            if refused:
                await self._put_away(target.topic, batch.messages, refused)
        except MqbridgeError as error:
            left |= {bisect_right(ends, failure.index) for failure in refused}
            return [contents[index] for index in sorted(left)], str(error)
        return [contents[index] for index in sorted(left)], failures[0].reason

    def _batch_of(self, contents: Sequence[Unit | Message]) -> Batch:
        """Make a batch of contents, which are all units or all messages."""
        units = [content for content in contents if isinstance(content, Unit)]
        if units:
            assert self._format is not None  # noqa: S101 - otherwise nothing is parked
            return batch_of_units(self._format, units)
        return Batch.of([content for content in contents if isinstance(content, Message)])

    async def _put_away(self, target: str, messages: Sequence[Message], refused: Sequence[MessageFailure]) -> None:
        """Store messages that their target never accepts as dead letters. Raises ClusterError if that fails."""
        async with limited("storing a dead letter"):
            letters = await self._open_dead_letters()
            receipt = await letters.send(0, letters.make(target, messages, refused, NO_SOURCE))
        if receipt.failures:
            raise ClusterError(f"a parked message is stored nowhere: {receipt.failures[0].reason}")
        log.error("%d parked messages are dead letters in %s: %s", len(refused), letters.label, refused[0].reason)

    # --- topics and outbounds -------------------------------------------------------------------------------------------

    async def _ensure(self, topic: str, partitions: int) -> None:
        """Create a parking topic if it does not exist, or grow it to this number of partitions. Raises ClusterError."""
        if topic in self._known and self._counts.get(topic, 0) >= partitions:
            return
        async with limited(f"creating {topic}"):
            pauses = Backoff(0.02, 1.0)
            is_created = False
            while (count := await self._count(topic)) < partitions:
                if is_created:
                    await asyncio.sleep(pauses.delay())
                else:
                    await self._cluster.create(topic, partitions)
                    is_created = True
        self._counts[topic] = count
        if topic not in self._known or is_created:
            self._found(topic)

    async def _count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist. Raises ClusterError."""
        described = await self._cluster.describe(topic)
        return 0 if described is None else len(described.index_by_partition)

    async def _outbound(self, topic: str, partitions: int) -> Outbound:
        """Return the open outbound of a parking topic, which is created with this number of partitions. Raises ClusterError."""
        async with self._outbound_lock:
            await self._ensure(topic, partitions)
            outbound = self._outbounds.get(topic)
            if outbound is None or outbound.partitions < partitions:  # the topic may have grown since it was opened
                outbound = await self._open_outbound(topic)
            unused = self._use(topic, outbound)
        await self._close_outbounds(unused)
        return outbound

    async def _outbound_of(self, target: Target) -> tuple[Outbound, int]:
        """Return the open outbound of a target, and its index of the partition. Raises TargetGone, ClusterError."""
        topic, partition, is_own = target
        if is_own:
            outbound = await self._outbound(topic, partition + 1)
            return outbound, partition % outbound.partitions
        async with self._finding.hold(topic):
            async with limited(f"looking for {topic}"):
                check_target(topic, partition, await self._cluster.describe(topic))
            opened = self._outbounds.get(topic)
            if opened is None or index_of(opened, partition) is None:
                opened = await self._open_outbound(topic)
            unused = self._use(topic, opened)
        await self._close_outbounds(unused)
        if (index := index_of(opened, partition)) is None:
            raise ClusterError(f"partition {partition} of topic {topic} accepts no messages now")
        return opened, index

    def _use(self, topic: str, outbound: Outbound) -> Sequence[tuple[str, Outbound]]:
        """Keep an outbound open, as the one that was used last; return those that are to be closed therefore."""
        outdated = self._outbounds.pop(topic, outbound)
        self._outbounds[topic] = outbound
        unused = [] if outdated is outbound else [(topic, outdated)]
        return [*unused, next(iter(self._outbounds.items()))] if len(self._outbounds) > MAX_OUTBOUNDS else unused

    async def _close_outbounds(self, unused: Iterable[tuple[str, Outbound]]) -> None:
        for topic, outbound in unused:
            await self._close_outbound(topic, outbound)

    async def _open_outbound(self, topic: str) -> Outbound:
        try:
            async with limited(f"opening {topic}"):
                return await self._cluster.outbound(OutboundSpec(topic, stamp_origin=False, keep_units=True))
        except ClusterError:
            self._known.discard(topic)  # it may have been deleted
            self._counts.pop(topic, None)
            raise

    async def _sent(self, topic: str, outbound: Outbound, partition: int, share: Share) -> Sequence[MessageFailure]:
        """Send, and return the failures. An outbound that cannot be used any more is closed. Raises ClusterError."""
        try:
            async with asyncio.timeout(REQUEST_S):
                receipt = await outbound.send(partition, share)
        except TimeoutError:
            await self._close_outbound(topic, outbound)
            raise ClusterError(f"nothing was stored in {topic} within {REQUEST_S:g} s") from None
        except ClusterError:
            self._known.discard(topic)  # it may have been deleted
            await self._close_outbound(topic, outbound)
            raise
        return receipt.failures

    async def _close_outbound(self, topic: str, outbound: Outbound) -> None:
        """Close an outbound; another one of the topic, which was opened since, stays open."""
        if self._outbounds.get(topic) is outbound:
            del self._outbounds[topic]
        await outbound.close(asyncio.get_running_loop().time() + 1.0)


def _digest(topic: str, group: str) -> str:
    return hashlib.sha256(f"{topic}\0{group}".encode()).hexdigest()[:16]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _give_back(waiting: Sequence[Waiting]) -> None:
    """Give units back that were not parked: they are taken again when they are due, or after a pause."""
    for each in waiting:
        remaining_s = max(0.0, (each.parked.due_ms - _now_ms()) / 1000)
        each.feed.give_back(each.delivered, counted=False, delay_s=min(remaining_s, RETRY_S))


def _wait_s(level: str, message: Message, longest_s: float) -> float:
    """Return the seconds until a message of a level is to be brought back; at most 0 if it is, or was not parked."""
    try:
        parked, _ = unwrap(message)
    except InvalidParked:
        return 0.0
    now_s = time.time()
    wait_s = min(longest_s, parked.parked_ms / 1000 + LEVELS_S[level] - now_s)
    return min(wait_s, parked.due_ms / 1000 - now_s) if parked.is_deposit else wait_s


def _ending(lane: InboundLane) -> asyncio.Event:
    """Return the event that is set when a lane is to be given up: what is being stored is finished before."""
    return lane.releasing if isinstance(lane, AnnouncesRelease) else lane.revoked


def _check_kept(lane: InboundLane) -> None:
    """Raise LaneRevoked if the lane is to be given up."""
    if _ending(lane).is_set():
        raise LaneRevoked(f"{lane.partition} is given up")


async def _sleep(lane: InboundLane, time_s: float) -> None:
    """Sleep, at most CLOCK_S. Raises LaneRevoked if the lane is to be given up."""
    try:
        async with asyncio.timeout(min(time_s, CLOCK_S)):
            await _ending(lane).wait()
    except TimeoutError:
        return
    _check_kept(lane)
