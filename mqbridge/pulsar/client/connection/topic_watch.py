"""Watch on the topics of a namespace that match a pattern.

Brokers with topic list watchers (3.0 and later, announced in the handshake) push changes. The list is also polled, whether the
broker pushes changes or not: the request contains the hash of the last response, so the broker sends no names if nothing has
changed. The broker lists each partition separately, but the changes that this module reports contain topics only.
"""

import asyncio
import logging
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import retry_log_level
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.connection.lookup import FIRST_DELAY_S, MAX_DELAY_S, Lookup
from mqbridge.pulsar.wire import topic_lists
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.wire.limits import check_topics

log = logging.getLogger(__name__)


class TopicChange(NamedTuple):
    """A change of the topic list, with full topic names."""

    added: set[str]
    """New topics, and known topics with new partitions."""
    removed: set[str]
    """Topics that do not exist any more."""


class TopicWatch:
    """One watch, created by `ClusterClient.watch_topics`. It is a push handler of a connection while the broker pushes changes.

    `watcher_id` is unique in the client. `refresh_s` is the interval of polling, in seconds.
    """

    def __init__(
        self, lookup: Lookup, watcher_id: int, namespace: str, pattern: str, refresh_s: float, request_timeout_s: float
    ) -> None:
        self.topics: set[str] = set()
        """The matching topics after the last reported change."""
        self._lookup, self._id = lookup, watcher_id
        self._namespace, self._pattern = namespace, pattern
        self._refresh_s, self._request_timeout_s = refresh_s, request_timeout_s
        self._watched_pattern = pattern
        """The pattern sent to the broker; `_match_all` if the broker refuses the real one. By default brokers refuse to watch
        patterns of more than 50 characters."""
        self._match_all = f"{namespace}/.*"
        self._names: set[str] = set()
        """The broker's current list; it names each partition separately."""
        self._known_names: set[str] = set()
        """`_names` when the last change was computed."""
        self._hash: str | None = None
        """The broker's hash of `_names`; None before the first response."""
        self._connection: Connection | None = None
        """The connection over which the broker pushes changes; None while there is no watch at the broker."""
        self._polls_only = False
        """True if the broker does not support or refuses watches, so that the list is only polled."""
        self._changed = asyncio.Event()
        """Set when the broker has pushed a change, and when the connection was lost: `next_change` then refreshes at once."""
        self._backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)

    @property
    def receives_pushes(self) -> bool:
        """True while the broker pushes changes."""
        return self._connection is not None

    async def next_change(self) -> TopicChange:
        """Return the next change of the list; the first call returns all existing topics at once, as added, possibly none.

        Transient errors are logged and retried. Raises ClusterErrors that are FATAL.
        """
        is_first = self._hash is None
        while True:
            self._changed.clear()  # before the refresh: a change pushed during the refresh may be newer than the list
            await self._refresh()
            topics = topic_lists.parent_topics(self._names, self._pattern)
            added = topic_lists.parent_topics(self._names - self._known_names, self._pattern)
            self._known_names = set(self._names)
            if is_first or added or topics != self.topics:
                change = TopicChange(added, self.topics - topics)
                self.topics = topics
                return change
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _refresh(self) -> None:
        """Start a watch if there is none and the broker supports it, and request the current list.

        Retry until both steps succeed. Raises only ClusterErrors that are FATAL.
        """
        while True:
            try:
                if self._connection is None and not self._polls_only:
                    await self._start_watch()
                await self._request_list()
            except ClusterError as error:
                if error.failure is Failure.FATAL:
                    raise
                delay = self._backoff.delay()
                text = "updating the topic list of namespace %s failed, retrying in %.1f s: %s"
                log.log(retry_log_level(error, logging.INFO), text, self._namespace, delay, error)
                await asyncio.sleep(delay)
            else:
                self._backoff.reset()
                return

    async def _start_watch(self) -> None:
        """Start a watch at the broker; if it refuses the pattern, watch the whole namespace; if it refuses both, only poll."""
        connection = await self._lookup.service()
        if not connection.supports_topic_watches:
            self._polls_only = True
            return
        try:
            response = await self._request_watch(connection)
        except ServerRefused as error:
            if self._watched_pattern == self._match_all:
                log.info("namespace %s: polling the topic list, because the broker refuses a watch: %s", self._namespace, error)
                self._polls_only = True
            else:
                text = "namespace %s: watching all topics and filtering here, as the broker refuses pattern %s: %s"
                log.info(text, self._namespace, self._pattern, error)
                self._watched_pattern, self._hash = self._match_all, None
                await self._start_watch()
            return
        if connection.watchers.get(self._id) is self:  # otherwise the connection was lost in the meantime
            self._connection = connection
        # If the hash equals the one in the request, the response contains no names.
        if response.topics_hash != self._hash:
            try:
                check_topics(len(response.topic), f"topics and partitions in {self._namespace}")
            except RemoteProtocolError as error:
                raise ClusterError(str(error), Failure.FATAL) from error
            self._names, self._hash = set(response.topic), response.topics_hash

    async def _request_watch(self, connection: Connection) -> pb.CommandWatchTopicListSuccess:
        """Request the watch. Registers for pushes before that, because they may follow at once. Raises ClusterError."""
        connection.watchers[self._id] = self
        try:
            response: pb.CommandWatchTopicListSuccess = await connection.request(
                lambda request_id: topic_lists.watch_topic_list(
                    request_id, self._id, self._namespace, self._watched_pattern, self._hash
                ),
                BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
                f"a watch on the topics of {self._namespace}",
                self._request_timeout_s,
            )
        except BaseException:
            connection.watchers.pop(self._id, None)
            raise
        return response

    async def _request_list(self) -> None:
        """Request the list; keep the current names if the broker reports that they have not changed."""
        topic_list = await self._lookup.topics(self._namespace, self._watched_pattern, self._hash)
        if topic_list.names is not None:
            self._names = set(topic_list.names)
        self._hash = topic_list.hash

    def on_push(self, frame: Frame) -> None:
        """Process a change pushed by the broker."""
        update = frame.command.watchTopicUpdate
        names = (self._names | set(update.new_topics)) - set(update.deleted_topics)
        check_topics(len(names), f"topics and partitions in {self._namespace}")
        self._names = names
        self._hash = update.topics_hash
        self._changed.set()

    def on_lost(self, error: Exception) -> None:
        """Process the loss of the connection; the next refresh starts a new watch."""
        log.log(
            retry_log_level(error, logging.INFO),
            "the connection of the watch on namespace %s was lost, starting a new watch: %s",
            self._namespace,
            error,
        )
        self._connection = None
        self._changed.set()

    async def close(self) -> None:
        """Close the watch at the broker, if there is one."""
        connection, self._connection = self._connection, None
        if connection is None or not connection.alive:
            return
        connection.watchers.pop(self._id, None)
        try:
            await connection.request(
                lambda request_id: topic_lists.watch_topic_list_close(request_id, self._id),
                BaseCommand.SUCCESS,
                f"closing the watch on the topics of {self._namespace}",
                self._request_timeout_s,
            )
        except ClusterError as error:
            log.log(
                retry_log_level(error, logging.INFO),
                "the broker did not confirm the close of the watch on namespace %s, whose pushes are now ignored: %s",
                self._namespace,
                error,
            )
