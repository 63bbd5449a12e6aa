"""Topics of a listener: the names by which its clients know the topics of the backing cluster, and their partitions.

A template such as `persistent://public/default/{topic}` maps names both ways. Characters that the cluster refuses in names are
escaped (see `mqbridge.adapter.names`), so different names of clients are different topics of the cluster. A name that does not
match the template does not exist, nor does one that the gateway uses itself: it is reserved.

What this rests on: a topic keeps the index of each of its partitions (`Topic.index_by_partition`), here and at other gateways.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.topics import Topic
from mqbridge.errors import ClusterError, ConfigError, RefusalReason, RequestRefused
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.limits import limited
from mqbridge.listener.notes import Notes
from mqbridge.net.backoff import Backoff

log = logging.getLogger(__name__)

PLACEHOLDER = "{topic}"
FRESH_S = 1.0
"""How long a description of a topic is used without asking the cluster again."""
CREATE_TIMEOUT_S = 20.0
"""Maximum time until a topic that was created or grown is seen: some systems show it at all servers only after a while."""
ONE_PARTITION, PARTITIONED, NOT_PARTITIONED = "topics with one partition", "partitioned", "not partitioned"
"""The kind of notes about topics with one partition, and their values."""
MAX_KNOWN_TOPICS = 10_000
"""Maximum number of topics whose description is kept; a listener that serves more asks the cluster more often."""
MAX_CREATED_PARTITIONS = 1000
"""Maximum number of partitions of a topic that a client creates."""


@dataclass(frozen=True, slots=True)
class ListenedTopic:
    """A topic as clients of a listener know it.

    name            its name for clients, without the number of a partition
    backing         its name in the cluster
    partitions      names of the cluster's partitions, by the index by which clients count them
    is_partitioned  False if clients see one partition as a topic without partitions, where their protocol tells the two apart
    is_due          True for a topic of messages that were parked and are due (see `parking`), which clients do not see
    """

    name: str
    backing: str
    partitions: Mapping[int, str]
    is_partitioned: bool
    is_due: bool = False

    @property
    def count(self) -> int:
        """Number of partitions, also of those that are away now."""
        return max(self.partitions, default=-1) + 1

    def partition(self, index: int) -> str:
        """Return the name of a partition in the cluster. Raises RequestRefused if there is none, or if it is away."""
        try:
            return self.partitions[index]
        except KeyError:
            reason = RefusalReason.NOT_READY if 0 <= index < self.count else RefusalReason.TOPIC_MISSING
            raise RequestRefused(f"topic {self.name} has no partition {index} now", reason) from None


class FixedNames(NamedTuple):
    """Names of topics that have a meaning in the clients' protocol, whatever the template of the listener is.

    in_cluster   returns the name in the cluster (before it is escaped) for a client's name; None if the template counts
    for_clients  returns the client's name for such a name in the cluster; None likewise
    """

    in_cluster: Callable[[str], str | None]
    for_clients: Callable[[str], str | None]


NO_FIXED_NAMES = FixedNames(lambda _: None, lambda _: None)


class TopicTemplate:
    """How names of a cluster become names for clients: text that contains `{topic}` once."""

    def __init__(self, template: str) -> None:
        """Raises ConfigError for a template without `{topic}`, or with several."""
        if template.count(PLACEHOLDER) != 1:
            raise ConfigError(f"the template {template!r} does not contain {PLACEHOLDER} exactly once", path="topics")
        self._before, _, self._after = template.partition(PLACEHOLDER)

    def match(self, name: str) -> str | None:
        """Return what stands for `{topic}` in a name; None if the name does not match."""
        if not name.startswith(self._before) or not name.endswith(self._after):
            return None
        found = name[len(self._before) : len(name) - len(self._after)]
        return found or None

    def fill(self, topic: str) -> str:
        """Return the name of a topic for clients."""
        return f"{self._before}{topic}{self._after}"


class ListenedTopics:
    """Finds, creates and lists the topics of a listener."""

    def __init__(
        self,
        cluster: Cluster,
        template: TopicTemplate,
        *,
        create_partitions: int | None,
        is_reserved: Callable[[str], bool] = lambda _: False,
        fixed_names: FixedNames = NO_FIXED_NAMES,
        notes: Notes | None = None,
    ) -> None:
        """`create_partitions` is the number of partitions of topics that clients create; None: they may not create any.

        `is_reserved` returns True for the names (in the cluster) of topics that the gateway uses itself. `fixed_names` are those
        for which the template does not count. `notes` keep how topics
        with one partition were created.
        """
        self._cluster, self._template = cluster, template
        self._create_partitions, self._is_reserved = create_partitions, is_reserved
        self._fixed_names = fixed_names
        self._known: dict[str, tuple[float, ListenedTopic]] = {}
        """The last description of each topic, with the loop time at which it was asked for, by the name in the cluster."""
        self._asking = KeyedLocks[str]()
        """Held while the cluster is asked for a topic: once for all who want it."""
        self._notes = Notes(None, "", "") if notes is None else notes
        self._one_partition = {name: value == PARTITIONED for name, value in self._notes.load(ONE_PARTITION).items()}
        """Whether a topic with one partition was created as a partitioned one, by the name in the cluster."""

    @property
    def can_create(self) -> bool:
        """True if clients may create topics."""
        return self._create_partitions is not None

    @property
    def can_delete(self) -> bool:
        """True if the cluster can delete topics."""
        return self._cluster.capabilities.delete_topics

    @property
    def created_partitions(self) -> int | None:
        """Number of partitions of topics that clients create; None if they may not create any."""
        return self._create_partitions

    @property
    def creates_one_partition(self) -> bool:
        """True if topics that clients create have one partition."""
        return self._create_partitions == 1

    def backing_name(self, name: str) -> str | None:
        """Return the name that a topic of clients has in the cluster, whether it exists or not; None if it cannot exist."""
        found = self._fixed_names.in_cluster(name)
        if found is None:
            found = self._template.match(name)
        if found is None:
            return None
        backing = self._cluster.capabilities.topic_name.escape(found)
        return None if self._is_reserved(backing) else backing

    def client_name(self, backing: str) -> str | None:
        """Return the name for clients of a topic of the cluster; None if clients do not see it."""
        rule = self._cluster.capabilities.topic_name
        found = rule.unescape(backing)
        if self._is_reserved(backing) or rule.escape(found) != backing:
            return None
        fixed = self._fixed_names.for_clients(found)
        return self._template.fill(found) if fixed is None else fixed

    async def names(self) -> list[str]:
        """Return the names of all topics that clients see, sorted. Raises RequestRefused if they cannot be listed."""
        if not self._cluster.capabilities.list_topics:
            raise RequestRefused("the topics of this cluster cannot be listed", RefusalReason.NOT_ALLOWED)
        names = [self.client_name(backing) for backing in await self._cluster.topics()]
        return sorted(name for name in names if name is not None)

    async def find(self, name: str, *, fresh: bool = False) -> ListenedTopic | None:
        """Return a topic; None if it does not exist. With `fresh`, the cluster is asked in any case. Raises ClusterError."""
        backing = self.backing_name(name)
        if backing is None or self._cluster.capabilities.topic_name.problem(backing) is not None:
            return None
        if not fresh and (known := self._recent(backing)) is not None:
            return known
        wanted_at = asyncio.get_running_loop().time() if fresh else None
        async with limited(f"finding topic {name}"), self._asking.hold(backing):
            if (known := self._recent(backing, wanted_at)) is not None:
                return known
            asked_at = asyncio.get_running_loop().time()
            topic = await self._cluster.describe(backing)
        if topic is None:
            self._forget(backing)
            return None
        return self._remember(name, topic, asked_at)

    def _recent(self, backing: str, since: float | None = None) -> ListenedTopic | None:
        """Return a description that is newer than `since` (loop time; None: FRESH_S ago), if there is one."""
        if backing not in self._known:
            return None
        at, topic = self._known[backing]
        return topic if at > (asyncio.get_running_loop().time() - FRESH_S if since is None else since) else None

    def _remember(self, name: str, topic: Topic, asked_at: float) -> ListenedTopic:
        partitions = {index: partition for partition, index in topic.index_by_partition.items()}
        backing = self.backing_name(name) or topic.name
        is_partitioned = len(partitions) != 1 or self._one_partition.get(backing, self._create_partitions != 1)
        listened = ListenedTopic(name, backing, partitions, is_partitioned)
        if len(self._known) >= MAX_KNOWN_TOPICS:
            self._known.clear()
        self._known[backing] = asked_at, listened
        return listened

    def _forget(self, backing: str) -> None:
        self._known.pop(backing, None)

    async def find_or_create(self, name: str) -> ListenedTopic:
        """Return a topic; create it if it does not exist and clients may create topics. Raises RequestRefused, ClusterError."""
        topic = await self.find(name)
        if topic is None:
            if self._create_partitions is None:
                raise RequestRefused(f"topic {name} does not exist", RefusalReason.TOPIC_MISSING)
            topic = await self.create(name, self._create_partitions, is_partitioned=self._create_partitions != 1)
        return topic

    async def create(self, name: str, partitions: int, *, is_partitioned: bool) -> ListenedTopic:
        """Create a topic, or grow it to this number of partitions. Raises RequestRefused, ClusterError."""
        backing = self.backing_name(name)
        if backing is None:
            raise RequestRefused(f"topic {name} is not served here", RefusalReason.TOPIC_MISSING)
        if (problem := self._cluster.capabilities.topic_name.problem(backing)) is not None:
            raise RequestRefused(f"topic {name} cannot exist in this cluster: {problem}", RefusalReason.INVALID_NAME)
        if not self._cluster.capabilities.create_topics:
            raise RequestRefused("topics cannot be created in this cluster", RefusalReason.NOT_ALLOWED)
        if not 0 < partitions <= MAX_CREATED_PARTITIONS:
            text = f"a topic with {partitions} partitions cannot be created: it may have 1 to {MAX_CREATED_PARTITIONS}"
            raise RequestRefused(text, RefusalReason.NOT_ALLOWED)
        async with limited(f"creating topic {name}"):
            await self._cluster.create(backing, partitions)
        await self._note_one_partition(backing, is_partitioned if partitions == 1 else None)
        self._forget(backing)
        log.info("topic %s has %d partitions: created for clients as %s", backing, partitions, name)
        return await self._wait_seen(name, partitions)

    async def _note_one_partition(self, backing: str, is_partitioned: bool | None) -> None:
        """Keep whether a topic with one partition is a partitioned one; None: the topic has another number, or is gone.

        Nothing is kept of those that are as clients create them by default.
        """
        default = self._create_partitions != 1
        kept = None if is_partitioned is default else is_partitioned
        if kept is self._one_partition.get(backing):
            return
        if kept is None:
            del self._one_partition[backing]
        elif len(self._one_partition) < MAX_KNOWN_TOPICS:
            self._one_partition[backing] = kept
        try:
            await self._notes.write(ONE_PARTITION, backing, None if kept is None else (PARTITIONED if kept else NOT_PARTITIONED))
        except ClusterError as error:
            log.warning("whether topic %s is a partitioned one is not known after a restart: %s", backing, error)

    async def _wait_seen(self, name: str, partitions: int) -> ListenedTopic:
        """Wait until a topic is seen with this number of partitions."""
        pauses = Backoff(0.02, 1.0)
        topic: ListenedTopic | None = None
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                while topic is None or topic.count < partitions:
                    topic = await self.find(name, fresh=True)
                    await asyncio.sleep(0 if topic is not None and topic.count >= partitions else pauses.delay())
        except TimeoutError:
            if topic is None:
                raise ClusterError(f"topic {name} was created, and is not seen yet") from None
        return topic

    async def delete(self, name: str) -> None:
        """Delete a topic with its messages. Raises RequestRefused, ClusterError."""
        topic = await self.find(name, fresh=True)
        if topic is None:
            raise RequestRefused(f"topic {name} does not exist", RefusalReason.TOPIC_MISSING)
        if not self._cluster.capabilities.delete_topics:
            raise RequestRefused("topics cannot be deleted in this cluster", RefusalReason.NOT_ALLOWED)
        async with limited(f"deleting topic {name}"):
            await self._cluster.delete(topic.backing)
        self._forget(topic.backing)
        await self._note_one_partition(topic.backing, None)
        log.info("topic %s was deleted for clients, who know it as %s", topic.backing, name)
