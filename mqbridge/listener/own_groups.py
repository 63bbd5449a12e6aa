"""Groups that this gateway keeps itself: each partition is read by position, and the state file has what is acknowledged.

What this rests on: no other gateway serves the same groups at the same time.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.feed import Feed
from mqbridge.listener.groups import GroupStart, Partitions
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)


class OwnGroups:
    """See the module, and `mqbridge.listener.groups.Groups`."""

    def __init__(self, partitions: Partitions, store: GroupStore, listener: str, cluster: str) -> None:
        """`listener` and `cluster` are their names, which are part of the keys in the store."""
        self._partitions, self._store = partitions, store
        self._listener, self._cluster = listener, cluster
        self._feeds: dict[GroupKey, Feed] = {}
        """The open feeds."""
        self._users: Counter[GroupKey] = Counter()
        self._locks: dict[GroupKey, asyncio.Lock] = {}
        """Held while a feed is opened, or its source is released."""

    async def open(self, topic: ListenedTopic, partition: int, group: str, start: GroupStart, sharing: Sharing) -> Feed:  # noqa: ARG002 - the server shares the messages itself
        """Return the feed of a group."""
        key = self._partitions.key(topic, partition, group)
        self._users[key] += 1
        try:
            async with self._lock(key):
                if key not in self._feeds:
                    self._feeds[key] = await self._open(key, topic, partition, start)
                return self._feeds[key]
        except BaseException:
            self._drop_user(key)
            raise

    async def _open(self, key: GroupKey, topic: ListenedTopic, partition: int, start: GroupStart) -> Feed:
        known = self._store.load(key)
        begin = await self._begin(key, topic, partition, start) if known is None else known.mark
        if known is None or await self._is_made_anew(topic, partition, begin):
            if known is not None:
                log.warning("topic %s was made anew: group %s begins at its first message", topic.backing, key.group)
                begin = await self._partitions.position_of(topic, partition, Start.EARLIEST)
            self._record(key, begin)
            await self._store.written(key)
        feed = self._partitions.make_feed(topic, partition, key.group, self._store)
        feed.attach(self._partitions.source(topic, partition, begin), begin)
        return feed

    async def _begin(self, key: GroupKey, topic: ListenedTopic, partition: int, start: GroupStart) -> Position:
        """Return where a group begins in a partition that it has not read: at its first message if it has read others before.

        Such a partition was added to the topic, and what was sent to it before the client has noticed is not to be lost.
        """
        is_new = key.group not in self._store.groups(self._listener, self._cluster, topic.backing)
        return await self._partitions.position_of(topic, partition, start if is_new else Start.EARLIEST)

    async def _is_made_anew(self, topic: ListenedTopic, partition: int, mark: Position) -> bool:
        """Return True if the group is behind the end of the partition: the topic was deleted, and created again."""
        bounds = await self._partitions.bounds(topic, partition)
        return bounds.is_known and mark > bounds.next

    def _record(self, key: GroupKey, position: Position) -> None:
        state = Acknowledged(position, position)
        self._store.record(key, lambda: state)

    def release(self, feed: Feed) -> None:
        """Use a feed no longer; its source is released when nobody uses it."""
        self._drop_user(feed.key)
        if not self._users[feed.key]:
            spawn(self._close_unused(feed.key), f"close of {feed.key}")

    def _drop_user(self, key: GroupKey) -> None:
        self._users[key] -= 1
        if self._users[key] <= 0:
            del self._users[key]

    async def _close_unused(self, key: GroupKey) -> None:
        async with self._lock(key):
            if not self._users[key] and (feed := self._feeds.pop(key, None)) is not None:
                await feed.detach()

    def _lock(self, key: GroupKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def exists(self, topic: ListenedTopic, group: str) -> bool:
        """Return True if the group has a position in the topic."""
        return group in await self.names(topic)

    async def names(self, topic: ListenedTopic) -> list[str]:
        """Return the names of the groups that have positions in the topic."""
        return self._store.groups(self._listener, self._cluster, topic.backing)

    async def create(self, topic: ListenedTopic, group: str, start: GroupStart) -> None:
        """Create a group in all partitions."""
        for partition in topic.partitions:
            key = self._partitions.key(topic, partition, group)
            async with self._lock(key):
                if self._store.load(key) is None:
                    self._record(key, await self._partitions.position_of(topic, partition, start))
                    await self._store.written(key)

    async def delete(self, topic: ListenedTopic, group: str, partition: int | None = None) -> None:
        """Delete a group; refused while it has consumers."""
        indexes = topic.partitions if partition is None else [partition]
        keys = [self._partitions.key(topic, index, group) for index in indexes]
        if any(self._users[key] for key in keys):
            raise RequestRefused(f"the group {group} has consumers", RefusalReason.BUSY)
        for key in keys:
            async with self._lock(key):
                if (feed := self._feeds.pop(key, None)) is not None:
                    await feed.detach()
                self._store.delete(key)
                await self._store.written(key)

    async def move(self, topic: ListenedTopic, group: str, positions: Mapping[int, Position]) -> None:
        """Move a group, also while it has consumers: what they have does not count any more."""
        for partition, position in positions.items():
            key = self._partitions.key(topic, partition, group)
            async with self._lock(key):
                if (feed := self._feeds.get(key)) is not None and feed.is_held:
                    await feed.seek(position)
                else:
                    self._record(key, position)
                await self._store.written(key)

    async def committed(self, topic: ListenedTopic, group: str) -> Mapping[int, Position]:
        """Return the recorded positions."""
        states = {index: self._store.load(self._partitions.key(topic, index, group)) for index in topic.partitions}
        return {index: state.mark for index, state in states.items() if state is not None}

    async def forget(self, topic: ListenedTopic) -> None:
        """Delete the groups of a topic that is deleted; feeds that are open end."""
        for key in [key for key in self._feeds if key.topic == topic.backing]:
            await self._feeds.pop(key).detach()
        for group in await self.names(topic):
            for partition in topic.partitions:
                self._store.delete(self._partitions.key(topic, partition, group))

    async def close(self, deadline: float | None = None) -> None:
        """Release all sources; the owner of the store writes what they recorded."""
        await asyncio.gather(*(feed.detach(deadline) for feed in self._feeds.values()), return_exceptions=True)
        self._feeds.clear()
