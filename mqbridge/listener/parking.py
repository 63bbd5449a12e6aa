"""Messages that wait long for one group: they are stored in parking topics of the backing, and acknowledged in their own topic.

So they hold neither memory nor the position of their group, and no gateway has to live until they are due. There is one topic
for each length of time (a level, see `parked`), which all gateways with the same `parking` share: one of them at a time reads it,
holds the oldest message until its time has passed, and stores it where it belongs then. That is another level, or, when it is due
soon, the topic of what is due for its group: `{parking}-due-` and a digest. Subscriptions of the group read it beside their own.

    QUEUED    a subscription has taken it and handed it over
    PARKED    it is stored in a level, and acknowledged in its own topic
    DUE       it is stored in the topic of what is due, and acknowledged in its level

        (stored)             QUEUED -> PARKED
        (not stored)         it is given back to its feed, and taken again later
        (time of its level)  PARKED -> PARKED, in a level for the rest; PARKED -> DUE
        (group was moved)    PARKED -> gone: the message comes from its own topic again, or is skipped

Every step stores before it acknowledges, so a crash may make a message come twice, and loses none.

A group that is moved or deleted gets nothing that was parked before: the move is published among the definitions, with a number
that ascends, and each parked message carries the number that was known when it was parked. What this rests on: whoever parks
reads the newest number first, and nothing of the group is parked here while it is moved. Clocks of gateways are compared only to
find out what is due.

What this rests on further: lanes of the backing deliver in order, and it keeps messages longer than the longest level.
"""

import asyncio
import hashlib
import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import UnitFormat, batch_of_units
from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec, Sharing, Start
from mqbridge.adapter.names import NameRule
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure, GapError, LaneRevoked, MqbridgeError, RefusalReason, RequestRefused
from mqbridge.groups.membership import SharedMembership
from mqbridge.listener.definitions import Definitions
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import Groups
from mqbridge.listener.limits import READ_BYTES, limited
from mqbridge.listener.parked import LEVELS_S, InvalidParked, Parked, level_for, unwrap, wrap
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
STORED_AT_ONCE = 500
"""Maximum number of messages that are parked, or brought back, with one request for each topic."""
MAX_OUTBOUNDS = 100
"""Maximum number of outbounds that are kept open."""
LANE_PAUSE_S = 5.0
"""Pause before a level is read again that could not be read."""
MOVED = b"moved"
"""Version under which the moves of a group are published among the definitions."""

Waiting = tuple[Feed, Delivered, Parked]
"""A unit that is to be parked, with its feed."""


def parking_name(rule: NameRule, name: str) -> str:
    """Return a name as the system accepts it: as it is, if it does."""
    return rule.escape(name) if rule.problem(name) else name


class Parking:
    """See the module. Call `start` once the definitions are read, and `close`."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        unit_format: UnitFormat,
        definitions: Definitions,
        open_dead_letters: Callable[[], Awaitable[DeadLetters]],
        member: str,
    ) -> None:
        """`name` is what the names of its topics, and of its group, begin with; `member` names this gateway for operators."""
        rule = cluster.capabilities.topic_name
        self.parked = self.brought_back = self.dropped = 0
        """Totals of messages: parked, stored as due, and dropped because their group was moved."""
        self._cluster, self._format, self._definitions = cluster, unit_format, definitions
        self._open_dead_letters, self._member = open_dead_letters, member
        self._name, self._group = name, parking_name(cluster.capabilities.group_name, name)
        self._levels = {level: parking_name(rule, f"{name}-{level}") for level in LEVELS_S}
        self._known: set[str] = set()
        """The parking topics that exist."""
        self._watchers: set[Callable[[], None]] = set()
        self._queue: dict[str, list[Waiting]] = {}
        """Units that wait to be parked, by level."""
        self._partitions: dict[str, int] = {}
        """Number of partitions of their topics, by the topic of what is due."""
        self._moving: Counter[str] = Counter()
        """Number of moves under way, by the topic of what is due."""
        self._outbounds: dict[str, Outbound] = {}
        """Open outbounds by topic, the one that was used last at the end."""
        self._outbound_lock = asyncio.Lock()
        self._memberships: dict[str, SharedMembership] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers that make a level be read again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    @property
    def is_supported(self) -> bool:
        """True if messages can be parked: a system that delays messages by itself needs no parking."""
        capabilities = self._cluster.capabilities
        return not capabilities.delay and capabilities.create_topics

    # --- the life of the service ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the levels that exist, and those that are made later."""
        if self.is_supported and not self._is_open:
            self._is_open = True
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
        levels = set(self._levels.values())
        async with limited("looking for parking topics"):
            if self._cluster.capabilities.list_topics:
                found = set(await self._cluster.topics())
                begin = self._due_name("", "")[: -len(_digest("", ""))]
                found = {name for name in found if name in levels or name.startswith(begin)}
            else:
                found = {name for name in levels | self._known if await self._cluster.describe(name) is not None}
        for name in found - self._known:
            self._found(name)

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
        await cancel(*self._tasks)
        memberships, self._memberships = list(self._memberships.values()), {}
        outbounds, self._outbounds = list(self._outbounds.values()), {}
        closes = [*(each.close(deadline) for each in memberships), *(each.close(deadline) for each in outbounds)]
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
            return None
        partitions = {index: partition for partition, index in described.index_by_partition.items()}
        return ListenedTopic(f"what is due of {topic.name}", name, partitions, is_partitioned=True, is_due=True)

    def park(self, feed: Feed, delivered: Delivered, topic: ListenedTopic, partition: int, due_ms: int) -> None:
        """Park a unit that was taken from the feed of a group: it is acknowledged when it is stored, or given back."""
        parked = Parked(topic.backing, partition, feed.key.group, due_ms, _now_ms(), 0)
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._start_parking)
        self._partitions[self._due_name(topic.backing, feed.key.group)] = topic.count
        self._queue.setdefault(level_for((due_ms - parked.parked_ms) / 1000), []).append((feed, delivered, parked))

    def _start_parking(self) -> None:
        queue, self._queue = self._queue, {}
        partitions, self._partitions = self._partitions, {}
        for level, waiting in queue.items():
            for begin in range(0, len(waiting), STORED_AT_ONCE):
                part = waiting[begin : begin + STORED_AT_ONCE]
                if self._is_open:
                    self._spawn(self._park(level, part, partitions), f"parking for {level}")
                else:
                    _give_back(part)

    async def _park(self, level: str, waiting: Sequence[Waiting], partitions: Mapping[str, int]) -> None:
        """Store units in a level, and acknowledge them; give back those that are not stored."""
        stored: list[Waiting] = []
        try:
            async with asyncio.timeout(REQUEST_S):
                stored = await self._store_parked(level, waiting, partitions)
        except (MqbridgeError, TimeoutError) as error:
            log.warning("%d messages cannot be parked now, which is tried again: %s", len(waiting), error or "no answer")
        finally:  # cancelled, too
            for feed, delivered, _ in stored:
                feed.acknowledge(delivered)
            kept = {id(delivered) for _, delivered, _ in stored}
            _give_back([each for each in waiting if id(each[1]) not in kept])

    async def _store_parked(self, level: str, waiting: Sequence[Waiting], partitions: Mapping[str, int]) -> list[Waiting]:
        """Store units in a level; return those that are stored. Raises ClusterError, RequestRefused."""
        for topic, group in {(parked.topic, parked.group) for _, _, parked in waiting}:
            due = self._due_name(topic, group)
            await self._ensure(due, partitions[due])
        outbound = await self._outbound(self._levels[level], 1)
        await self._definitions.catch_up()
        now_ms = _now_ms()
        sent: list[Waiting] = []
        messages: list[Message] = []
        for feed, delivered, parked in waiting:
            content = delivered.unit or delivered.message
            is_moving = self._moving[self._due_name(parked.topic, parked.group)] > 0
            if content is not None and delivered.generation == feed.generation and not is_moving:
                sent.append((feed, delivered, parked))
                messages.append(wrap(parked._replace(parked_ms=now_ms, moved_ms=self._moved_ms(parked)), content))
        if not sent:
            return []
        failures = await self._sent(self._levels[level], outbound, 0, Share(Batch.of(messages)))
        if failures:
            log.warning("%d messages cannot be parked: %s", len(failures), failures[0].reason)
        failed = {failure.index for failure in failures}
        stored = [each for index, each in enumerate(sent) if index not in failed]
        self.parked += len(stored)
        return stored

    def _moved_ms(self, parked: Parked) -> int:
        """Return the number of the last move of a group that is known here; 0 if it was never moved."""
        due = self._due_name(parked.topic, parked.group)
        moves = (self._definitions.find(name, MOVED) for name in (due, f"{due}/{parked.partition}"))
        return max((move.registered_ms for move in moves if move is not None), default=0)

    @asynccontextmanager
    async def moving(self, topic: ListenedTopic, group: str, partitions: Collection[int] | None = None) -> AsyncIterator[None]:
        """Let a group be moved by the body, in these partitions (None: all): what was parked before does not come any more.

        Raises RequestRefused, ClusterError: then the group may be moved, and what was parked before may still come. Before the
        body, it raises ClusterError if it is not known whether anything was parked.
        """
        due = self._due_name(topic.backing, group)
        self._moving[due] += 1
        try:
            if self.is_supported:
                await self._find(due)
            yield
            if self.is_supported and due in self._known:
                await self._publish_move([due] if partitions is None else [f"{due}/{partition}" for partition in partitions])
        finally:
            self._moving[due] -= 1
            if not self._moving[due]:
                del self._moving[due]

    async def _find(self, topic: str) -> None:
        """Take note of a parking topic that another gateway may have made. Raises ClusterError."""
        async with limited(f"looking for {topic}"):
            if topic not in self._known and await self._cluster.describe(topic) is not None:
                self._found(topic)

    async def _publish_move(self, names: Sequence[str]) -> None:
        """Publish moves, with higher numbers than all that were published before. Raises RequestRefused."""
        await self._definitions.catch_up()
        for name in names:
            try:
                await self._definitions.add(name, MOVED, 0, b"")
            except RequestRefused as error:
                if error.reason is not RefusalReason.NOT_ALLOWED:
                    raise
                log.warning("messages that were parked before a group was moved may still come: %s", error)

    async def forget(self, topic: ListenedTopic, group: str) -> None:
        """Delete the topic of what is due for a group that was deleted. Raises ClusterError."""
        name = self._due_name(topic.backing, group)
        if name in self._known and self._cluster.capabilities.delete_topics:
            self._known.discard(name)
            if (outbound := self._outbounds.get(name)) is not None:
                await self._close_outbound(name, outbound)
            async with limited(f"deleting {name}"):
                if await self._cluster.describe(name) is not None:
                    await self._cluster.delete(name)

    # --- levels ---------------------------------------------------------------------------------------------------------

    async def _join(self, level: str) -> None:
        """Become a reader of a level; one of all that are reads it."""
        supported = self._cluster.capabilities.sharing
        spec = InboundSpec(
            (self._levels[level],),
            self._group,
            Start.EARLIEST,
            max_bytes=READ_BYTES,
            sharing=Sharing.FAILOVER if Sharing.FAILOVER in supported else None,
            member=self._member,
            sent_back=False,
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
        except Exception as error:  # a bug must not look like a level without messages
            log.exception("messages that wait in %s are not read now, which is tried again", self._levels[level])
            self._read_later(level, repr(error))

    def _read_later(self, level: str, problem: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[level] = loop.call_later(LANE_PAUSE_S, self._read_again, level, problem)

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
            await self._store_again(lane, messages[at:end])
            at = end
            if at == batch.count:
                lane.acknowledge(batch)
            else:
                lane.acknowledge(batch, range(at))

    async def _store_again(self, lane: InboundLane, messages: Sequence[Message]) -> None:
        """Store messages where they go next; those of groups that were moved are dropped. Raises LaneRevoked, ClusterError."""
        now_ms = _now_ms()
        later: dict[str, list[Message]] = {}
        due: dict[tuple[str, int], list[Unit | Message]] = {}
        for message in messages:
            try:
                parked, content = unwrap(message)
            except InvalidParked as error:
                await self._put_away(self._name, [message], [MessageFailure(0, Failure.REFUSED, str(error))])
                continue
            if parked.moved_ms < self._moved_ms(parked):
                self.dropped += 1
            elif (remaining_s := (parked.due_ms - now_ms) / 1000) > HOLD_S:
                later.setdefault(level_for(remaining_s), []).append(wrap(parked._replace(parked_ms=now_ms), content))
            else:
                due.setdefault((self._due_name(parked.topic, parked.group), parked.partition), []).append(content)
        for level, parked_messages in later.items():
            await self._store(lane, self._levels[level], 0, parked_messages)
        for (topic, partition), contents in due.items():
            for kind in (Unit, Message):
                if chosen := [content for content in contents if isinstance(content, kind)]:
                    await self._store(lane, topic, partition, chosen)
            self.brought_back += len(contents)

    async def _store(self, lane: InboundLane, topic: str, partition: int, contents: Sequence[Unit | Message]) -> None:
        """Store units, or messages, again and again until that succeeds. Raises LaneRevoked when the lane is given up."""
        pauses = Backoff()
        while contents:
            batch = self._batch_of(contents)
            try:
                outbound = await self._outbound(topic, partition + 1)
                failures = await self._sent(topic, outbound, partition % outbound.partitions, Share(batch))
                if not failures:
                    return
                ends = list(accumulate(each.message_count if isinstance(each, Unit) else 1 for each in contents))
                refused = [failure for failure in failures if failure.failure_kind is Failure.REFUSED]
                failed = {bisect_right(ends, failure.index) for failure in failures}
                left = {bisect_right(ends, failure.index) for failure in failures if failure.failure_kind is not Failure.REFUSED}
                kept, contents = contents, [contents[index] for index in sorted(failed)]
                if refused:
                    await self._put_away(topic, batch.messages, refused)
                contents, problem = [kept[index] for index in sorted(left)], failures[0].reason
            except MqbridgeError as error:
                problem = str(error)
            if contents:
                log.warning("messages that were parked cannot be stored in %s, which is tried again: %s", topic, problem)
                await _sleep(lane, pauses.delay())

    def _batch_of(self, contents: Sequence[Unit | Message]) -> Batch:
        """Make a batch of contents, which are all units or all messages."""
        units = [content for content in contents if isinstance(content, Unit)]
        if units:
            return batch_of_units(self._format, units)
        return Batch.of([content for content in contents if isinstance(content, Message)])

    async def _put_away(self, target: str, messages: Sequence[Message], refused: Sequence[MessageFailure]) -> None:
        """Store messages that their target never accepts as dead letters. Raises ClusterError if that fails."""
        async with limited("storing a dead letter"):
            letters = await self._open_dead_letters()
            receipt = await letters.outbound.send(0, letters.make(target, messages, refused, NO_SOURCE))
        if receipt.failures:
            raise ClusterError(f"a parked message is stored nowhere: {receipt.failures[0].reason}")
        log.error("%d parked messages are dead letters in %s: %s", len(refused), letters.label, refused[0].reason)

    # --- topics and outbounds -------------------------------------------------------------------------------------------

    async def _ensure(self, topic: str, partitions: int) -> None:
        """Create a parking topic if it does not exist. Raises ClusterError."""
        if topic in self._known:
            return
        async with limited(f"creating {topic}"):
            pauses = Backoff(0.02, 1.0)
            is_created = False
            while await self._cluster.describe(topic) is None:
                if is_created:
                    await asyncio.sleep(pauses.delay())
                else:
                    await self._cluster.create(topic, partitions)
                    is_created = True
        if topic not in self._known:
            self._found(topic)

    async def _outbound(self, topic: str, partitions: int) -> Outbound:
        """Return the open outbound of a parking topic, which is created with this number of partitions. Raises ClusterError."""
        async with self._outbound_lock:
            await self._ensure(topic, partitions)
            outbound = self._outbounds.pop(topic, None)
            if outbound is None:
                outbound = await self._open_outbound(topic)
            self._outbounds[topic] = outbound
            oldest = next(iter(self._outbounds.items())) if len(self._outbounds) > MAX_OUTBOUNDS else None
        if oldest is not None:
            await self._close_outbound(*oldest)
        return outbound

    async def _open_outbound(self, topic: str) -> Outbound:
        try:
            async with limited(f"opening {topic}"):
                return await self._cluster.outbound(OutboundSpec(topic, stamp_origin=False, keep_units=True))
        except ClusterError:
            self._known.discard(topic)  # it may have been deleted
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


async def delete_group(parking: Parking, groups: Groups, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
    """Delete a group, in one partition or as a whole, with what is parked for it. Raises RequestRefused, ClusterError."""
    async with parking.moving(topic, group, None if partition is None else [partition]):
        await groups.delete(topic, group, partition)
    due = await parking.due_topic(topic, group)
    if due is not None:
        if partition is None or partition in due.partitions:
            await groups.delete(due, group, partition)
        if partition is None or not await groups.exists(topic, group):
            await parking.forget(topic, group)


async def forget_groups(parking: Parking, groups: Groups, topic: ListenedTopic) -> None:
    """Forget the groups of a topic that is deleted, with what is parked for them. Raises RequestRefused, ClusterError."""
    try:
        names = await groups.names(topic)
    except RequestRefused as error:
        log.debug("the groups of %s cannot be listed: %s", topic.name, error)
        names = []
    await groups.forget(topic)
    for group in names:
        async with parking.moving(topic, group):
            if (due := await parking.due_topic(topic, group)) is not None:
                await groups.forget(due)
        await parking.forget(topic, group)


def _digest(topic: str, group: str) -> str:
    return hashlib.sha256(f"{topic}\0{group}".encode()).hexdigest()[:16]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _give_back(waiting: Sequence[Waiting]) -> None:
    """Give units back that were not parked: they are taken again when they are due, or after a pause."""
    for feed, delivered, parked in waiting:
        remaining_s = max(0.0, (parked.due_ms - _now_ms()) / 1000)
        feed.give_back(delivered, counted=False, delay_s=min(remaining_s, RETRY_S))


def _wait_s(level: str, message: Message, longest_s: float) -> float:
    """Return the seconds until a message of a level is to be brought back; at most 0 if it is, or was not parked."""
    try:
        parked, _ = unwrap(message)
    except InvalidParked:
        return 0.0
    return min(longest_s, parked.parked_ms / 1000 + LEVELS_S[level] - time.time())


async def _sleep(lane: InboundLane, time_s: float) -> None:
    """Sleep, at most CLOCK_S. Raises LaneRevoked if the lane is revoked."""
    try:
        async with asyncio.timeout(min(time_s, CLOCK_S)):
            await lane.revoked.wait()
    except TimeoutError:
        return
    raise LaneRevoked(f"{lane.partition} was revoked")
