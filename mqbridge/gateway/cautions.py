"""What deletes messages of a route before they are consumed, as its clusters tell: said when it is new, looked at again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import GroupMaker
from mqbridge.errors import ClusterError, ConfigError, Failure, MqbridgeError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 600.0
"""Lag grows and policies are changed; asking costs a few calls per topic."""
MOST_LINES = 10
"""A pattern may take hundreds of topics with the same fault."""
SIDE_BY_SIDE = 8
"""Topics that are asked about at once."""


class TopicUse(NamedTuple):
    """A topic of a route: read as a `group`, or written, with the groups that are made with it (`planned`)."""

    cluster: str
    topic: str
    group: str | None = None
    planned: Collection[str] = ()


async def warnings_about(uses: Sequence[TopicUse], clusters: Mapping[str, Cluster]) -> list[str]:
    """What the clusters say, in the order of the topics. Raises nothing that is expected."""
    permits = asyncio.Semaphore(SIDE_BY_SIDE)

    async def ask(use: TopicUse) -> list[str]:
        operations = clusters[use.cluster].operations
        if operations is None:
            return []
        async with permits:
            try:
                found = await operations.warnings(use.topic, use.group, use.planned)
            except MqbridgeError as error:
                if isinstance(error, ClusterError) and error.failure is not Failure.FATAL:
                    log.info("whether %s/%s keeps its messages cannot be told now: %s", use.cluster, use.topic, error)
                    return []
                found = [f"whether {use.topic} keeps its messages cannot be told: {error}"]
        return [f"cluster {use.cluster}: {text}" for text in found]

    answers = await asyncio.gather(*(ask(use) for use in dict.fromkeys(uses)))
    return list(dict.fromkeys(text for answer in answers for text in answer))


def group_maker(cluster: Cluster, groups: Collection[str]) -> GroupMaker | None:
    """Who makes the groups that are wanted with a topic; None when none are. Raises ConfigError or ClusterError."""
    if not groups:
        return None
    operations = cluster.operations
    if isinstance(operations, GroupMaker):
        operations.check_create_group()
        return operations
    raise ConfigError(
        f"cluster {cluster.name!r} keeps messages whether or not somebody subscribed: it has no use for `create.subscriptions`",
        hint="Remove `subscriptions` from `create`; how long messages are kept is a setting of the cluster",
    )


class Cautions:
    """The warnings of one route, logged when they are new."""

    def __init__(self, route: str, look: Callable[[], Awaitable[list[str]]]) -> None:
        self.current: list[str] = []
        self._route, self._look = route, look

    async def run(self) -> None:
        """Look now, and again and again."""
        while True:
            found = await self._look()
            known = set(self.current)
            new = [text for text in found if text not in known]
            for text in new[:MOST_LINES]:
                log.warning("route %s: %s", self._route, text)
            if more := len(new[MOST_LINES:]):
                log.warning(
                    "route %s: %d more warnings like these; `mqbridge check --connect` shows all of them", self._route, more
                )
            self.current = found
            await asyncio.sleep(LOOK_EVERY_S)
