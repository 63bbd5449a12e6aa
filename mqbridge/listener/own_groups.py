"""Groups that this gateway keeps itself: each partition is read by position, and the state file has what is acknowledged.

A new group gets a position in every partition of its topic at once: those that are opened a little later are not new to it. A
feed whose reader has failed reads again after a pause, as long as somebody uses it.

In a cluster that keeps messages only for groups of its own, a `Retainer` keeps what these groups need.

What this rests on: no other gateway serves the same groups at the same time.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.adapter.tools.deadlines import resolve_deadline, seconds_until
from mqbridge.errors import ClusterError, Failure, LaneRevoked, MqbridgeError, RefusalReason, RequestRefused
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.store import GroupKey, GroupStore, NoteKey
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import GroupStart, Partitions
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.limits import limited
from mqbridge.listener.retainer import Retainer
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

GRACE_S = 0.5
"""Time after the deadline that feeds get that obey it."""
LINGER_S = 1.0
"""Time that a feed stays open when its last user is gone: acknowledgements may still come, and clients come back."""
SETTLE_S = 5.0
"""Time that a feed has, when its last user is gone, until what is being stored of it elsewhere is acknowledged: a message that is
being parked would otherwise come twice."""
DELETED_PARTITIONS = "deleted partitions"
"""The kind of notes about the partitions of a topic in which a group was deleted: clients delete it in each by itself."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Shortest and longest pause before a partition that could not be read is read again."""


class _OpenFeed:
    """A feed that is in use, and what it takes to read its partition again."""

    def __init__(self, feed: Feed, topic: ListenedTopic, partition: int) -> None:
        self.feed, self.topic, self.partition = feed, topic, partition
        self.pauses = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        self.delivered = 0
        """Number of messages that it had delivered when it was read again last."""
        self.reopening: asyncio.Task[None] | None = None
        """The task that makes it read again; None while it reads."""

    async def close(self, deadline: float | None = None) -> None:
        """Read no more."""
        await cancel(self.reopening)
        await self.feed.detach(deadline)


class OwnGroups:
    """See the module, and `mqbridge.listener.groups.Groups`."""

    def __init__(
        self, partitions: Partitions, store: GroupStore, listener: str, cluster: str, retained: Cluster | None = None
    ) -> None:
        """`listener` and `cluster` are their names, which are part of the keys in the store.

        `retained` is the cluster itself, in which messages are kept for the groups if it keeps them only for its own.
        """
        self._retainer = None if retained is None else Retainer(retained, listener, self._find_needed)
        self._partitions, self._store = partitions, store
        self._listener, self._cluster = listener, cluster
        self._feeds: dict[GroupKey, _OpenFeed] = {}
        """The open feeds."""
        self._users: Counter[GroupKey] = Counter()
        self._locks = KeyedLocks[GroupKey]()
        """Held while a feed is opened, or its source is released."""
        self._creating = KeyedLocks[tuple[str, str]]()
        """Held while a group is created, by the topic's name in the cluster and the group."""
        self._closing: set[asyncio.Task[None]] = set()
        """Tasks that release the sources of feeds which nobody uses."""
        self._lingering: dict[GroupKey, asyncio.TimerHandle] = {}
        """Timers of feeds that nobody uses, after which they are closed."""
        self._is_closed = False

    async def open(self, topic: ListenedTopic, partition: int, group: str, start: GroupStart, sharing: Sharing) -> Feed:  # noqa: ARG002 - the server shares the messages itself
        """Return the feed of a group."""
        key = self._partitions.key(topic, partition, group)
        self._users[key] += 1
        try:
            async with limited(f"opening group {group} of topic {topic.name}"):
                await self._ensure(key, topic, start)
                async with self._locks.hold(key):
                    if key not in self._feeds:
                        self._feeds[key] = await self._open(key, topic, partition, start)
                    return self._feeds[key].feed
        except BaseException:
            self._drop_user(key)
            raise

    async def _open(self, key: GroupKey, topic: ListenedTopic, partition: int, start: GroupStart) -> _OpenFeed:
        begin = await self._begin(key, topic, partition, start)
        if self._is_closed:
            raise RequestRefused("the listener is being closed", RefusalReason.NOT_READY)
        feed = self._partitions.make_feed(topic, partition, key.group, self._store)
        opened = _OpenFeed(feed, topic, partition)
        feed.attach(self._partitions.source(topic, partition, begin), begin)
        feed.on_failed = lambda: self._on_failed(key, opened)
        return opened

    async def _begin(self, key: GroupKey, topic: ListenedTopic, partition: int, start: GroupStart) -> Position:
        """Return where a group is in a partition: at the first message of one that was added to the topic.

        What was sent to it before the client has noticed is not to be lost. In a partition in which the group was deleted, it
        begins at `start`, as a new one.
        """
        known = self._store.load(key)
        if known is not None and not await self._is_made_anew(topic, partition, known.mark):
            return known.mark
        if known is not None:
            log.warning("topic %s was made anew: group %s begins at its first message", topic.backing, key.group)
        deleted = self._deleted_partitions(key)
        was_deleted = known is None and key.partition in deleted
        begin = await self._partitions.position_of(topic, partition, start if was_deleted else Start.EARLIEST)
        self._record(key, begin)
        await self._store.written(key)
        if was_deleted:
            await self._note_deleted(key, deleted - {key.partition})
        return begin

    async def begin(self, topic: ListenedTopic, partition: int, group: str, start: GroupStart) -> Position:
        """Return where a group begins to read a partition, for clients that use no feed; a new one is created in all partitions.

        Raises RequestRefused, ClusterError.
        """
        key = self._partitions.key(topic, partition, group)
        async with limited(f"opening group {group} of topic {topic.name}"):
            await self._ensure(key, topic, start)
            async with self._locks.hold(key):
                return await self._begin(key, topic, partition, start)

    async def _ensure(self, key: GroupKey, topic: ListenedTopic, start: GroupStart) -> None:
        """Create a group that does not exist, and keep the messages that it needs."""
        if self._retainer is not None:
            self._retainer.watch(topic)
        if self._store.load(key) is None:
            await self.create(topic, key.group, start)
        elif self._store.is_unwritten(key):  # an earlier request has failed, and the client tries again
            await self._store.written(key)

    def _deleted_partitions(self, key: GroupKey) -> set[str]:
        """Return the names of the partitions in which the group was deleted, while it is in others of the topic."""
        text = self._store.note(self._note_key(key))
        return set() if text is None else set(text.split("\n"))

    async def _note_deleted(self, key: GroupKey, partitions: Collection[str]) -> None:
        """Keep the names of these partitions. Raises ClusterError."""
        await self._store.write_note(self._note_key(key), "\n".join(sorted(partitions)) or None)

    def _note_key(self, key: GroupKey) -> NoteKey:
        return NoteKey(key.listener, key.cluster, DELETED_PARTITIONS, f"{key.topic}\n{key.group}")

    async def _is_made_anew(self, topic: ListenedTopic, partition: int, mark: Position) -> bool:
        """Return True if the group is behind the end of the partition: the topic was deleted, and created again."""
        bounds = await self._partitions.bounds(topic, partition)
        return bounds.is_known and mark > bounds.next

    def _on_failed(self, key: GroupKey, opened: _OpenFeed) -> None:
        """Read the partition again, after a pause."""
        if opened.reopening is None:
            opened.reopening = spawn(self._read_again(key, opened), f"new reader of {key}")

    async def _read_again(self, key: GroupKey, opened: _OpenFeed) -> None:
        feed = opened.feed
        if feed.counters.delivered > opened.delivered:
            opened.pauses.reset()
        opened.delivered = feed.counters.delivered
        while True:
            await asyncio.sleep(opened.pauses.delay())
            async with self._locks.hold(key):
                if self._feeds.get(key) is not opened:
                    return
                try:
                    async with limited(f"reading {key.topic}/{key.partition} for group {key.group}"):
                        begin = await self._begin(key, opened.topic, opened.partition, Start.EARLIEST)
                except MqbridgeError as error:
                    feed.problem = str(error)
                    continue
                except Exception as error:  # a bug of the adapter or of ours must not end the reading for ever
                    log.exception("group %s cannot read %s/%s again", key.group, key.topic, key.partition)
                    feed.problem = repr(error)
                    continue
                opened.reopening = None
                if self._feeds.get(key) is opened:
                    feed.attach(self._partitions.source(opened.topic, opened.partition, begin), begin)
                return

    def _record(self, key: GroupKey, position: Position) -> None:
        self._store.record(key, partial(_same, Acknowledged(position, position)))

    def release(self, feed: Feed) -> None:
        """Use a feed no longer; its source is released when nobody uses it."""
        self._drop_user(feed.key)

    def _drop_user(self, key: GroupKey) -> None:
        self._users[key] -= 1
        if self._users[key] <= 0:
            del self._users[key]
            if key in self._lingering:
                self._lingering.pop(key).cancel()
            if not self._is_closed:
                self._lingering[key] = asyncio.get_running_loop().call_later(LINGER_S, self._start_closing, key)

    def _start_closing(self, key: GroupKey) -> None:
        del self._lingering[key]
        task = spawn(self._close_unused(key), f"close of {key}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_unused(self, key: GroupKey) -> None:
        async with self._locks.hold(key):
            if not self._users[key] and (opened := self._feeds.get(key)) is not None:
                await opened.feed.finish(asyncio.get_running_loop().time() + SETTLE_S)
                await self._close_feed(key)

    async def _close_feed(self, key: GroupKey, deadline: float | None = None) -> None:
        if (opened := self._feeds.pop(key, None)) is not None:
            await opened.close(deadline)

    async def exists(self, topic: ListenedTopic, group: str) -> bool:
        """Return True if the group has a position in the topic."""
        return any(self._store.load(key) is not None for key in self._keys(topic, group))

    def _keys(self, topic: ListenedTopic, group: str) -> list[GroupKey]:
        return [self._partitions.key(topic, partition, group) for partition in sorted(topic.partitions)]

    async def names(self, topic: ListenedTopic) -> list[str]:
        """Return the names of the groups that have positions in the topic."""
        return self._store.groups(self._listener, self._cluster, topic.backing)

    async def create(self, topic: ListenedTopic, group: str, start: GroupStart) -> None:
        """Create a group in all partitions."""
        async with limited(f"creating group {group} of topic {topic.name}"), self._creating.hold((topic.backing, group)):
            if await self.exists(topic, group):
                return
            await self._keep_messages(topic)
            positions = {index: await self._partitions.position_of(topic, index, start) for index in topic.partitions}
            for index, position in positions.items():
                if self._store.load(key := self._partitions.key(topic, index, group)) is None:
                    self._record(key, position)
            for key in self._keys(topic, group):
                await self._store.written(key)
            if self._deleted_partitions(key := self._keys(topic, group)[0]):
                await self._note_deleted(key, ())

    async def _keep_messages(self, topic: ListenedTopic) -> None:
        """Keep the messages of a topic from now on. Raises ClusterError; not if this can never be done in this cluster."""
        if self._retainer is None:
            return
        try:
            await self._retainer.keep(topic)
        except ClusterError as error:
            if error.failure is not Failure.FATAL:
                raise
            log.warning("messages of topic %s are not kept for groups of this listener: %s", topic.backing, error)

    async def _find_needed(self, topic: ListenedTopic) -> dict[str, Position]:
        """Return by partition the lowest position of the groups of a topic, as the state file has it. Raises ClusterError.

        Partitions are left out in which a group will begin at the first message.
        """
        needed: dict[str, Position] = {}
        groups = await self.names(topic)
        for index, name in topic.partitions.items():
            keys = [self._partitions.key(topic, index, group) for group in groups]
            keys = [key for key in keys if name not in self._deleted_partitions(key)]
            states = [self._store.load(key) for key in keys]
            marks = [state.mark for state in states if state is not None]
            if marks and len(marks) == len(keys):
                for key in keys:
                    await self._store.written(key)
                needed[name] = min(marks)
        return needed

    async def delete(self, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
        """Delete a group; refused while it has consumers."""
        keys = self._keys(topic, group) if partition is None else [self._partitions.key(topic, partition, group)]
        async with limited(f"deleting group {group} of topic {topic.name}"), self._locks.hold_all(keys):
            if any(self._users[key] for key in keys):
                raise RequestRefused(f"the group {group} has consumers", RefusalReason.BUSY)
            for key in keys:
                await self._close_feed(key)
            if any(self._users[key] for key in keys):
                raise RequestRefused(f"the group {group} has consumers again", RefusalReason.BUSY)
            kept = [key for key in self._keys(topic, group) if key not in keys and self._store.load(key) is not None]
            noted = self._deleted_partitions(keys[0])
            deleted = noted | {key.partition for key in keys} if kept else set[str]()
            if deleted != noted:
                await self._note_deleted(keys[0], deleted)
            for key in keys:
                self._store.delete(key)
            for key in keys:
                await self._store.written(key)

    async def move(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Move a group, also while it has consumers: what they have does not count any more."""
        for partition, position in positions.items():
            key = self._partitions.key(topic, partition, group)
            async with limited(f"moving group {group} of topic {topic.name}"), self._locks.hold(key):
                if not await self._seek(key, position):
                    self._record(key, position)
                await self._store.written(key)

    async def _seek(self, key: GroupKey, position: Position) -> bool:
        """Move the reader of a partition, if it is read; return False if it is not."""
        if (opened := self._feeds.get(key)) is None or not opened.feed.is_held:
            return False
        try:
            await opened.feed.seek(position)
        except LaneRevoked:
            return False
        return True

    async def committed(self, topic: ListenedTopic, group: str) -> Mapping[int, Position]:
        """Return the recorded positions."""
        states = {index: self._store.load(self._partitions.key(topic, index, group)) for index in topic.partitions}
        return {index: state.mark for index, state in states.items() if state is not None}

    async def advance(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Acknowledge through the feeds that are open, and otherwise in what is recorded."""
        for partition, position in positions.items():
            key = self._partitions.key(topic, partition, group)
            async with limited(f"advancing group {group} of topic {topic.name}"), self._locks.hold(key):
                opened, known = self._feeds.get(key), self._store.load(key)
                if opened is not None and opened.feed.is_held:
                    await opened.feed.advance(position)
                elif known is not None and position > known.mark:
                    advanced = self._partitions.advanced(known, position)
                    self._store.record(key, partial(_same, advanced))
                await self._store.written(key)

    def commit(self, topic: ListenedTopic, partition: int, group: str, position: Position, *, backwards: bool) -> None:
        """Record that everything before a position is acknowledged, for clients that commit positions and use no feed.

        It is in the state file soon after. Unless `backwards`, a position before the recorded one has no effect.
        """
        key = self._partitions.key(topic, partition, group)
        known = self._store.load(key)
        if known is None or position > known.mark or (backwards and position < known.mark):
            self._record(key, position)

    async def leave(self, topic: ListenedTopic) -> None:
        """Close the feeds that are open."""
        for key in [key for key in self._feeds if key.topic == topic.backing]:
            async with self._locks.hold(key):
                await self._close_feed(key)

    async def forget(self, topic: ListenedTopic) -> None:
        """Delete the groups of a topic; feeds that are open end."""
        await self.leave(topic)
        if self._retainer is not None:
            self._retainer.forget(topic)
        self._partitions.forget(topic, self._store)
        for name in self._store.notes(self._listener, self._cluster, DELETED_PARTITIONS):
            if name.startswith(f"{topic.backing}\n"):
                await self._store.write_note(NoteKey(self._listener, self._cluster, DELETED_PARTITIONS, name), None)

    async def close(self, deadline: float | None = None) -> None:
        """Release all sources; the owner of the store writes what they recorded."""
        self._is_closed, deadline = True, resolve_deadline(deadline)
        for timer in self._lingering.values():
            timer.cancel()
        self._lingering.clear()
        if self._retainer is not None:
            await self._retainer.close()
        await asyncio.gather(*(self._close_feed(key, deadline) for key in list(self._feeds)), return_exceptions=True)
        if self._closing:
            await asyncio.wait(self._closing, timeout=max(GRACE_S, seconds_until(deadline)))


def _same(state: Acknowledged) -> Acknowledged:
    return state
