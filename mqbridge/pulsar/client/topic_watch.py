"""The topics of a namespace that match a pattern, as they come and go.

Where the broker can watch (3.0 and later, when it announces so) it reports changes itself; in any case it is asked now and then
by the hash of the last answer, which costs nothing while nothing changes. Whole topics are told, not their partitions.
"""

import asyncio
import logging
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.lookup import FIRST_DELAY_S, MOST_DELAY_S, Lookup
from mqbridge.pulsar.wire import topic_lists
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)


class TopicChange(NamedTuple):
    """Full names."""

    added: set[str]
    """Also a topic that was known, when partitions of it are new."""
    removed: set[str]


class TopicWatch:
    """One watch; a connection's session where the broker reports. Made by `PulsarClient.watch_topics`."""

    def __init__(
        self, lookup: Lookup, watcher_id: int, namespace: str, pattern: str, refresh_s: float, request_timeout_s: float
    ) -> None:
        self.topics: set[str] = set()
        """As last told."""
        self._lookup, self._id = lookup, watcher_id
        self._namespace, self._pattern = namespace, pattern
        self._refresh_s, self._request_timeout_s = refresh_s, request_timeout_s
        self._asked = pattern
        """What the broker is asked for: brokers refuse to watch patterns of more than 50 characters (a setting of theirs)."""
        self._wide = f"{namespace}/.*"
        self._names: set[str] = set()
        """What the broker lists, partitions one by one."""
        self._seen: set[str] = set()
        """Of these, what the last look found."""
        self._hash: str | None = None
        self._session: Connection | None = None
        self._refused = False
        """The broker will not watch, only list."""
        self._news = asyncio.Event()
        self._backoff = Backoff(FIRST_DELAY_S, MOST_DELAY_S)

    @property
    def watching(self) -> bool:
        """Whether the broker reports changes by itself just now."""
        return self._session is not None

    async def changes(self) -> TopicChange:
        """Wait for the next change; the first one is all there is, perhaps nothing. Raises ClusterError (FATAL)."""
        first = self._hash is None
        while True:
            self._news.clear()  # before looking: what is reported meanwhile may be newer than the list that is told
            await self._look()
            now = topic_lists.whole_topics(self._names, self._pattern)
            added = topic_lists.whole_topics(self._names - self._seen, self._pattern)
            self._seen = set(self._names)
            if first or added or now != self.topics:
                change = TopicChange(added, self.topics - now)
                self.topics = now
                return change
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        """Have the current list, from a watch if there can be one."""
        while True:
            try:
                if self._session is None and not self._refused:
                    await self._subscribe()
                await self._list()
            except ClusterError as error:
                if error.failure is Failure.FATAL:
                    raise
                log.log(level_of(error, logging.INFO), "the topics of %s: %s", self._namespace, error)
                await asyncio.sleep(self._backoff.delay())
            else:
                self._backoff.reset()
                return

    async def _subscribe(self) -> None:
        connection = await self._lookup.service()
        if not connection.watches_topics:
            self._refused = True
            return
        try:
            answer = await self._watch(connection)
        except ServerRefused as error:
            if self._asked == self._wide:
                log.info("%s: asking for the list now and then", error)
                self._refused = True
            else:
                log.info("%s: watching the whole namespace", error)
                self._asked, self._hash = self._wide, None
                await self._subscribe()
            return
        if connection.watchers.get(self._id) is self:
            self._session = connection
        # Against the hash that was sent along: the same hash means that no names follow.
        if answer.topics_hash != self._hash:
            self._names, self._hash = set(answer.topic), answer.topics_hash

    async def _watch(self, connection: Connection) -> pb.CommandWatchTopicListSuccess:
        connection.watchers[self._id] = self
        try:
            answer: pb.CommandWatchTopicListSuccess = await connection.request(
                lambda request_id: topic_lists.watch_topic_list(request_id, self._id, self._namespace, self._asked, self._hash),
                BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
                f"a watch on the topics of {self._namespace}",
                self._request_timeout_s,
            )
        except BaseException:
            connection.watchers.pop(self._id, None)
            raise
        return answer

    async def _list(self) -> None:
        found = await self._lookup.topics(self._namespace, self._asked, self._hash)
        if found.names is not None:
            self._names = set(found.names)
        self._hash = found.hash

    def on_push(self, frame: Frame) -> None:
        """The broker reports a change."""
        said = frame.command.watchTopicUpdate
        self._names = (self._names | set(said.new_topics)) - set(said.deleted_topics)
        self._hash = said.topics_hash
        self._news.set()

    def on_lost(self, error: Exception) -> None:
        """The connection is gone; the next look watches anew."""
        log.log(level_of(error, logging.INFO), "the watch on %s: %s", self._namespace, error)
        self._session = None
        self._news.set()

    async def close(self) -> None:
        """Tell the broker."""
        session, self._session = self._session, None
        if session is None or not session.alive:
            return
        session.watchers.pop(self._id, None)
        try:
            await session.request(
                lambda request_id: topic_lists.watch_topic_list_close(request_id, self._id),
                BaseCommand.SUCCESS,
                f"the end of the watch on {self._namespace}",
                self._request_timeout_s,
            )
        except ClusterError as error:
            log.log(level_of(error, logging.INFO), "%s", error)
