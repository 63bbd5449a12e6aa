"""Finds unprotected targets: topics whose cluster deletes the messages that a route writes before anybody has read them.

A route does not read the partitions that it would write to such a topic, unless the target has `unread: may_be_deleted`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import ReportsUnprotected
from mqbridge.errors import ClusterError, Failure
from mqbridge.routes.plan import Plan, TopicKey
from mqbridge.routes.retention_warnings import MAX_PARALLEL_TOPICS, TopicUse


async def unprotected_targets(uses: Iterable[TopicUse], clusters: Mapping[str, Cluster]) -> dict[str, str]:
    """Return why targets are unprotected, by `CLUSTER/TOPIC`; sources and targets with `may_be_deleted` are left out.

    A target about which its cluster cannot tell is left out too: the retention warnings name it. Raises ClusterError (not FATAL)
    if a cluster does not answer.
    """
    permits = asyncio.Semaphore(MAX_PARALLEL_TOPICS)

    async def check(use: TopicUse) -> str | None:
        operations = clusters[use.cluster].operations
        if not isinstance(operations, ReportsUnprotected):
            return None
        try:
            async with permits:
                return await operations.why_unprotected(use.topic, use.groups_to_create)
        except ClusterError as error:
            if error.failure is not Failure.FATAL:
                raise
            return None  # this client may not read it

    written = [use for use in dict.fromkeys(uses) if use.group is None and not use.may_be_deleted]
    results = await asyncio.gather(*map(check, written), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    reasons = zip(written, results, strict=True)
    return {f"{use.cluster}/{use.topic}": reason for use, reason in reasons if isinstance(reason, str)}


async def add_unprotected_problems(plans: Sequence[Plan], clusters: Mapping[str, Cluster]) -> None:
    """Add an error to `problems` of each plan with unprotected targets, or whose targets cannot be checked now.

    Plans with other problems are left as they are: `run` does not get as far as this check. Groups count as existing if one of
    these routes creates them, or reads the topic with them.
    """
    groups: dict[TopicKey, set[str]] = {}
    for plan in plans:
        for key, created in plan.groups.items():
            groups.setdefault(key, set()).update(created)
        for use in plan.topic_uses:
            if use.group is not None:
                groups.setdefault((use.cluster, use.topic), set()).add(use.group)
    for plan in plans:
        if plan.problems:
            continue
        uses = [
            use._replace(groups_to_create=tuple(sorted(groups.get((use.cluster, use.topic), ()))))
            for use in plan.topic_uses
            if use.cluster in clusters
        ]
        try:
            if unprotected := await unprotected_targets(uses, clusters):
                plan.problems.append(unprotected_error(plan.route.name, unprotected))
        except ClusterError as error:
            plan.problems.append(error)


def unprotected_error(route: str, unprotected: Mapping[str, str]) -> ClusterError:
    """Make the error for the unprotected targets of a route; the reasons are by `CLUSTER/TOPIC`.

    It is transient: a consumer that subscribes ends it.
    """
    return ClusterError(f"route {route!r}: {describe(unprotected)}", Failure.RETRY)


def describe(unprotected: Mapping[str, str]) -> str:
    """Return one text about unprotected targets, with the remedies."""
    reasons = "; ".join(f"target {label} would lose messages: {reason}" for label, reason in unprotected.items())
    return f"{reasons}. If unread messages may be deleted, set `unread: may_be_deleted`"
