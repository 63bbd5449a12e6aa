"""Polls the clusters of a route for warnings about retention that deletes messages before they are consumed; logs new ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ClusterError, Failure, MqbridgeError

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 600.0
"""Pause between two checks; a check costs a few requests per topic."""
MAX_LOGGED_WARNINGS = 10
"""Maximum number of warnings logged per check: a pattern may match hundreds of topics with the same problem."""
MAX_PARALLEL_TOPICS = 8
"""Maximum number of topics that are checked concurrently."""


class TopicUse(NamedTuple):
    """A topic that a route reads or writes."""

    cluster: str
    topic: str
    group: str | None = None
    """The group that reads a source topic; None for a target topic."""
    groups_to_create: Collection[str] = ()
    """The groups that the gateway creates in a target topic, and that count as existing."""
    may_be_deleted: bool = False
    """True for a target with `unread: may_be_deleted`."""


async def warnings_about(uses: Sequence[TopicUse], clusters: Mapping[str, Cluster]) -> list[str]:
    """Return the clusters' warnings, in the order of the topics. Raises no MqbridgeError.

    There are none about targets with `may_be_deleted`.
    A permanent failure of a check becomes a warning; after a transient one, the topic has no warnings.
    """
    permits = asyncio.Semaphore(MAX_PARALLEL_TOPICS)

    async def fetch_warnings(use: TopicUse) -> list[str]:
        operations = clusters[use.cluster].operations
        if operations is None:
            return []
        async with permits:
            try:
                warnings = await operations.warnings(use.topic, use.group, use.groups_to_create)
            except MqbridgeError as error:
                if isinstance(error, ClusterError) and error.failure is not Failure.FATAL:
                    log.info(
                        "the retention of topic %s/%s cannot be checked now, checking again later: %s",
                        use.cluster,
                        use.topic,
                        error,
                    )
                    return []
                warnings = [f"the retention of topic {use.topic} cannot be checked: {error}"]
        return [f"cluster {use.cluster}: {text}" for text in warnings]

    warnings_by_use = await asyncio.gather(*(fetch_warnings(use) for use in dict.fromkeys(uses) if not use.may_be_deleted))
    return list(dict.fromkeys(text for texts in warnings_by_use for text in texts))


class RouteWarnings:
    """The warnings of one route, logged when they are new. `fetch` returns all current warnings, see `warnings_about`."""

    def __init__(self, route: str, fetch: Callable[[], Awaitable[list[str]]]) -> None:
        self.current: list[str] = []
        """The warnings of the last check."""
        self._route, self._fetch = route, fetch

    async def run(self) -> None:
        """Poll for warnings until cancelled."""
        while True:
            warnings = await self._fetch()
            previous = set(self.current)
            new = [text for text in warnings if text not in previous]
            for text in new[:MAX_LOGGED_WARNINGS]:
                log.warning("route %s, retention warning: %s", self._route, text)
            if more := len(new[MAX_LOGGED_WARNINGS:]):
                log.warning(
                    "route %s: %d more retention warnings; `mqbridge check --connect` shows all of them", self._route, more
                )
            self.current = warnings
            await asyncio.sleep(CHECK_INTERVAL_S)
