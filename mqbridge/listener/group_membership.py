"""The membership of this gateway in a group of the cluster, for the topics that the group's clients have subscribed to.

    OUT       the group is not joined
    WORKING   it is being joined, or left, or both
    IN        it is joined, with the topics that are wanted
    LEAVING   nobody wants it any more; it is left after a while, because clients come back

        want topics             OUT, LEAVING, IN -> WORKING
        (GROW_PAUSE_S pass)     IN -> WORKING, if somebody has wanted the same topics in between
        (done)                  WORKING -> IN, OUT
        (failed)                WORKING -> WORKING, after a pause
        want nothing            IN -> LEAVING; WORKING -> OUT when it is done
        (LINGER_S pass)         LEAVING -> WORKING -> OUT
        want the same topics    LEAVING -> IN, as long as GROW_PAUSE_S have not passed

All topics are joined with one membership, as brokers expect: members of a group that read different topics would be assigned
partitions of topics that they do not read. A topic that does not exist is joined when it does. For that, the group is left and
joined anew, and none of its messages is delivered meanwhile: so topics that come into being one by one are joined together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from enum import Enum

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.errors import MqbridgeError, NotPermitted, RefusalReason, RequestRefused
from mqbridge.listener.backing_groups import BackingGroups, JoinedGroup
from mqbridge.listener.groups import GroupFeed, GroupStart, MakeFeed
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.listener.server import Services
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""How long a group is kept that has no clients any more."""
GROW_PAUSE_S, GROW_PAUSE_FACTOR = 5.0, 10
"""How long a group keeps its topics before more are joined that were created: this time, and this many times what the last join
has taken."""
FindStart = Callable[[ListenedTopic], Awaitable[GroupStart]]
"""Returns where a group begins in a topic if it is new there. Raises ClusterError."""


class BackingMembershipState(Enum):
    """The state of a membership, see the module."""

    OUT = "out"
    WORKING = "working"
    IN = "in"
    LEAVING = "leaving"


class BackingMembership:
    """See the module."""

    def __init__(
        self, group: str, services: Services, groups: BackingGroups, make_feed: MakeFeed, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when the membership has begun or ended, or has changed its topics."""
        self.state = BackingMembershipState.OUT
        self._loop = asyncio.get_running_loop()
        self.problem: str | None = None
        """Why it could not be joined at the last attempt."""
        self.is_permitted = True
        """False if there can be no such group in the cluster, or it does not permit it, at the last attempt."""
        self._group, self._services, self._groups = group, services, groups
        self._make_feed, self._on_change = make_feed, on_change
        self._wanted: frozenset[str] = frozenset()
        """The names of the topics that clients want."""
        self._find_start: FindStart = _at_begin
        self._joined: JoinedGroup | None = None
        self._topics: dict[str, ListenedTopic] = {}
        """The topics that are joined, by name."""
        self._feeds: list[QueueFeed] = []
        """The feeds of the membership."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Leaves the group, or joins topics that were created."""
        self._reached: frozenset[str] = frozenset()
        """The names that were wanted when the membership was made as it is."""
        self._may_grow_at = 0.0
        """Loop time from which on topics may be joined that were created."""
        self._is_closed = False

    def want(self, topics: Iterable[str], find_start: FindStart) -> None:
        """Be a member for exactly these topics, as far as they exist. `find_start` tells where a new group begins."""
        self._wanted, self._find_start = frozenset(topics), find_start
        if self._is_closed or self.state is BackingMembershipState.WORKING:
            return
        if self._wanted:
            if self.state is BackingMembershipState.LEAVING:
                self._stop_timer()
                self.state = BackingMembershipState.IN
            if not self._is_reached or self._loop.time() >= self._may_grow_at:
                self._work()
            elif self._timer is None:
                self._timer = self._loop.call_at(self._may_grow_at, self._work)
        elif self.state is BackingMembershipState.IN:
            self._stop_timer()
            self.state = BackingMembershipState.LEAVING
            self._timer = self._loop.call_later(LINGER_S, self._work)

    @property
    def _is_reached(self) -> bool:
        """True if the group is joined with all topics that are wanted, and existed then."""
        return self._joined is not None and not self._joined.is_over and self._wanted == self._reached

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _work(self) -> None:
        self._stop_timer()
        self._task = spawn(self._reach(), f"membership in {self._group}")
        self.state = BackingMembershipState.WORKING

    async def _reach(self) -> None:
        """Join and leave until the membership is as it is wanted."""
        pauses = Backoff()
        while not self._is_closed:
            try:
                wanted = self._wanted
                topics = await self._find(wanted)
                await self._change_to(topics)
                self.problem, self.is_permitted, self._reached = None, True, wanted
                if wanted == self._wanted:
                    break
            except MqbridgeError as error:
                self.problem, self.is_permitted = str(error), not _is_lasting(error)
                log.warning("group %s cannot be joined now, which is tried again: %s", self._group, error)
                await asyncio.sleep(pauses.delay())
            except Exception as bug:  # it must not look like a group without messages
                self.problem = repr(bug)
                log.exception("group %s cannot be joined now, which is tried again", self._group)
                await asyncio.sleep(pauses.delay())
        self.state = BackingMembershipState.OUT if self._joined is None else BackingMembershipState.IN
        self._on_change()

    async def _change_to(self, topics: dict[str, ListenedTopic]) -> None:
        """Be a member for these topics. Raises RequestRefused, ClusterError."""
        began = self._loop.time()
        if topics.keys() != self._topics.keys() or (self._joined is not None and self._joined.is_over):
            await self._leave()
            if topics:
                await self._join(topics)
        ended = self._loop.time()
        self._may_grow_at = ended + GROW_PAUSE_S + GROW_PAUSE_FACTOR * (ended - began)

    async def _find(self, names: Iterable[str]) -> dict[str, ListenedTopic]:
        """Return the topics that exist, by name. Raises ClusterError."""
        found = {name: await self._services.topics.find(name) for name in sorted(names)}
        return {name: topic for name, topic in found.items() if topic is not None}

    async def _join(self, topics: dict[str, ListenedTopic]) -> None:
        starts = {topic.backing: await self._find_start(topic) for topic in topics.values()}
        joined = await self._groups.join(list(topics.values()), self._group, starts, Sharing.FAILOVER, self._make_kept_feed)
        self._joined, self._topics = joined, topics

    def _make_kept_feed(self, topic: ListenedTopic, partition: int) -> GroupFeed:
        feed = self._make_feed(topic, partition)
        assert isinstance(feed, QueueFeed)  # noqa: S101 - `make_feed` makes such
        self._feeds.append(feed)
        return feed

    async def _leave(self) -> None:
        joined, self._joined, self._topics = self._joined, None, {}
        if joined is None:
            return
        joined.release()
        await joined.leave()
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            feed.retire()
        self._on_change()

    def feed(self, topic: ListenedTopic, partition: int) -> QueueFeed | None:
        """Return the feed of a partition; None if this gateway has not held it since the group was joined."""
        feed = None if self._joined is None else self._joined.feed(topic, partition)
        assert feed is None or isinstance(feed, QueueFeed)  # noqa: S101 - `make_feed` makes such
        return feed

    @property
    def feeds(self) -> Iterator[QueueFeed]:
        """The feeds of all partitions that this gateway has held since the group was joined."""
        return iter(self._feeds)

    @property
    def topics(self) -> Iterator[ListenedTopic]:
        """The topics that are joined."""
        return iter(self._topics.values())

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait until the clients have committed, or until the deadline (loop time)."""
        if self._joined is not None:
            await self._joined.finish(deadline)

    async def close(self) -> None:
        """End; the owner of the groups leaves them."""
        self._is_closed = True
        self._stop_timer()
        await cancel(self._task)


async def _at_begin(_: ListenedTopic) -> GroupStart:
    return Start.EARLIEST


def _is_lasting(error: MqbridgeError) -> bool:
    """Return True if a group cannot be joined until somebody changes something."""
    reasons = {RefusalReason.INVALID_NAME, RefusalReason.NOT_ALLOWED}
    return isinstance(error, NotPermitted) or (isinstance(error, RequestRefused) and error.reason in reasons)
