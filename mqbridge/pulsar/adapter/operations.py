"""Operations for people on subscriptions and topics: members, backlog, moving a subscription, finding a time.

All use the REST interface, where each partition is a topic of its own. Positions are whole entries.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from mqbridge.adapter.operations import Member
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.message import Position
from mqbridge.pulsar.adapter.deduplication import POLICY, DeduplicationWarnings, is_deduplicated
from mqbridge.pulsar.adapter.retention_warnings import (
    effective_policies,
    retaining_subscriptions,
    subscription_warnings,
    write_warnings,
)
from mqbridge.pulsar.adapter.topics import UNPARTITIONED, Topics
from mqbridge.pulsar.client.admin import Admin, TopicStats
from mqbridge.pulsar.client.admin_http import HTTP_CONFLICT
from mqbridge.pulsar.client.authorization import AccessDenied
from mqbridge.pulsar.client.subscription import is_reader
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)

T = TypeVar("T")

FAILOVER = "Failover"
_POLICIES = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "message_ttl_s",
    "deduplicationEnabled": "deduplication",
    "compaction_threshold": "compaction_threshold",
    "schema_compatibility_strategy": "schema_compatibility",
}
"""Policies of the namespace that decide about the storage of messages -> our names."""


class PulsarOperations:
    """Operations of one cluster; `bounds` returns a topic's bounds. All raise ClusterError, FATAL if `admin_url` is missing."""

    backlog_unit = "entries"
    """An entry may hold many messages."""

    def __init__(
        self, cluster: str, topics: Topics, admin: Admin | None, bounds: Callable[[str], Awaitable[Mapping[str, Bounds]]]
    ) -> None:
        self._cluster, self._topics, self._admin, self._bounds = cluster, topics, admin, bounds
        self._deduplication = DeduplicationWarnings(admin)

    # --- groups -----------------------------------------------------------------------------------------------------

    async def groups(self, topic: str) -> list[str]:
        """Return the subscriptions of the topic, except those of our readers, which brokers drop a moment after closing."""
        await self._topics.require_partition_names(topic)
        names = await self._need_admin("listing groups").subscriptions(self._topics.parse(topic))
        return [name for name in names if not is_reader(name)]

    async def check_subscription(self, topic: str, group: str) -> None:
        """Raise ClusterError (FATAL) if the subscription does not exist and brokers do not auto-create it."""
        if group in await self.groups(topic):
            return
        full = self._topics.parse(topic)
        try:
            allowed = await self._auto_creates_subscriptions(f"{full.tenant}/{full.namespace}")
        except AccessDenied as error:
            log.info("cannot find out whether brokers auto-create subscription %r of %s: %s", group, full, error)
            return
        if not allowed:
            raise ClusterError(
                f"{full} has no subscription {group!r}, and its brokers do not auto-create it "
                "(allowAutoSubscriptionCreation): create it",
                Failure.FATAL,
            )

    async def _auto_creates_subscriptions(self, namespace: str) -> bool:
        """Read the policy of the namespace (for its tenant's administrators) or the setting of the brokers (for super users)."""
        admin = self._need_admin("creating a group")
        policy = (await admin.policies(namespace)).get("autoSubscriptionCreationOverride")
        if policy is not None:
            return bool(policy["allowAutoSubscriptionCreation"])
        setting = (await admin.call("GET", "/brokers/configuration/runtime"))["allowAutoSubscriptionCreation"]
        return bool(setting == "true")

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the position after everything that the subscription has acknowledged without a gap."""
        admin = self._need_admin("reading the positions of a group")
        positions = await self._each(topic, admin.mark_delete_positions)
        return {name: (each[group][0], each[group][1] + 1, 0) for name, each in positions.items() if group in each}

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the number of entries that the subscription has not acknowledged, by partition."""
        all_stats = await self._stats(topic, "counting a backlog")
        return {name: stats.backlog[group] for name, stats in all_stats.items() if group in stats.backlog}

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the consumers by name. On a failover subscription only the active consumer holds a partition."""
        partitions: dict[str, list[str]] = {}
        addresses: dict[str, str] = {}
        for name, stats in (await self._stats(topic, "listing the members of a group")).items():
            subscription = stats.raw["subscriptions"].get(group)
            if subscription is None:
                continue
            for consumer in subscription["consumers"]:
                consumer_name = consumer["consumerName"]
                addresses[consumer_name] = consumer.get("address", "")
                held = partitions.setdefault(consumer_name, [])
                if subscription["type"] != FAILOVER or subscription["activeConsumerName"] == consumer_name:
                    held.append(name)
        return [Member(consumer, addresses[consumer], tuple(held)) for consumer, held in sorted(partitions.items())]

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Reset the subscription, or create it. FATAL while it has consumers: the broker would disconnect them."""
        admin, bounds = self._need_admin("moving a group"), await self._bounds(topic)
        if members := await self.members(topic, group):
            names = ", ".join(member.id for member in members)
            raise ClusterError(f"group {group!r} is being consumed by {names}: stop it, then move it", Failure.FATAL)
        if unknown := positions.keys() - bounds.keys():
            full = self._topics.parse(topic)
            raise ClusterError(f"topic {full} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        await asyncio.gather(
            *(_move(admin, self._concrete(topic, name), group, to, bounds[name]) for name, to in positions.items())
        )

    # --- positions and settings -------------------------------------------------------------------------------------

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return the positions at this publish time, by partition."""
        admin = self._need_admin("finding a time")
        bounds = await self._bounds(topic)
        entries = await self._each(topic, lambda concrete: admin.id_at(concrete, time_ms))
        return {name: _within(entry, bounds[name]) for name, entry in entries.items()}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return the positions `count` entries before the end, over existing ledgers; without `admin_url` in the newest only."""
        ends = {name: bounds.next for name, bounds in (await self._bounds(topic)).items()}
        if (admin := self._admin) is None:
            return {name: (ledger, max(entry - count, min(entry, 0)), 0) for name, (ledger, entry, _) in ends.items()}
        all_stats = await self._each(topic, admin.internal_stats)
        return {name: _count_back(stats["ledgers"], ends[name], count) for name, stats in all_stats.items()}

    async def entries_of_ledgers(self, topic: str, partition: str) -> dict[int, int] | None:
        """Return the number of entries by ledger id of a partition; None without a REST interface."""
        if self._admin is None:
            return None
        try:
            stats = await self._admin.internal_stats(self._concrete(topic, partition))
        except ClusterError as error:
            if not self._admin.is_guess:
                raise
            log.info("cannot count the ledgers of %s: %s", topic, error)
            return None
        counts = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in stats["ledgers"]}
        newest, _, last = stats["lastConfirmedEntry"].partition(":")  # an open ledger has the count 0
        return counts | {int(newest): max(counts.get(int(newest), 0), int(last) + 1)}

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the policies of the topic's namespace that decide about the storage of messages, as far as they are set."""
        if self._admin is None:
            return {}
        await self._topics.require_partition_names(topic)
        full = self._topics.parse(topic)
        policies = await self._admin.policies(f"{full.tenant}/{full.namespace}")
        values = {ours: policies.get(theirs) for theirs, ours in _POLICIES.items()}
        return {name: _text(value) for name, value in values.items() if value is not None}

    # --- retention --------------------------------------------------------------------------------------------------

    async def create_group(self, topic: str, group: str) -> None:
        """Create the subscription at the earliest message, in each partition without it."""
        admin = self._need_admin("creating a subscription")

        async def create(concrete: TopicName) -> None:
            try:
                await admin.create_subscription(concrete, group, EARLIEST)
            except ServerRefused as error:
                if error.code != HTTP_CONFLICT:
                    raise

        await self._each(topic, create)

    def check_create_group(self) -> None:
        """Raise ClusterError without `admin_url`: only the REST interface creates subscriptions without consuming."""
        self._need_admin("creating a subscription")

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return warnings about subscriptions, retention, time to live and backlog quota."""
        full = self._topics.parse(topic)
        if not self._topics.is_persistent(topic):
            return [f"{full} is not persistent: consumers that are not connected never get a message; use a persistent topic"]
        if self._admin is None:
            if group is not None:
                return []
            problem = f"cannot check the retention of {full} without the REST interface"
            return [f"{problem}; set admin_url of cluster {self._cluster!r}"]
        names = await self._topics.partition_names(topic)
        policies = await effective_policies(self._admin, full, exists=names is not None)
        if group is not None:
            return subscription_warnings(full, policies, group)
        if names is None or planned:
            return write_warnings(full, policies, {name: set(planned) for name in names or (UNPARTITIONED,)})
        stats = await self._admin.stats_by_partition(full, len(names) if names != (UNPARTITIONED,) else 0)
        subscriptions = {name: retaining_subscriptions(stats.get(str(self._concrete(topic, name)))) for name in names}
        return write_warnings(full, policies, subscriptions)

    # --- deduplication ----------------------------------------------------------------------------------------------

    async def deduplicates(self, topic: str) -> bool:
        """Return True if the policy in force enables deduplication."""
        await self._topics.require_partition_names(topic)
        return await is_deduplicated(self._need_admin("reading policies"), self._topics.parse(topic))

    async def deduplicate(self, topic: str) -> None:
        """Enable deduplication by the topic's own policy; brokers apply it a moment after this returns."""
        await self._topics.require_partition_names(topic)
        await self._need_admin("setting policies").set_topic_policy(self._topics.parse(topic), POLICY, value=True)

    async def warn_undeduplicated(self, topic: str) -> None:
        """Log one warning if the topic does not deduplicate."""
        await self._deduplication.check(self._topics.parse(topic))

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _need_admin(self, what: str) -> Admin:
        if self._admin is None:
            advice = f"add the admin_url of cluster {self._cluster!r} to its configuration"
            raise ClusterError(f"{what} needs admin_url: {advice}", Failure.FATAL)
        return self._admin

    async def _stats(self, topic: str, what: str) -> dict[str, TopicStats]:
        admin = self._need_admin(what)
        return await self._each(topic, admin.stats)

    async def _each(self, topic: str, call: Callable[[TopicName], Awaitable[T]]) -> dict[str, T]:
        names = await self._topics.require_partition_names(topic)
        answers = await asyncio.gather(*(call(self._concrete(topic, name)) for name in names))
        return dict(zip(names, answers, strict=True))

    def _concrete(self, topic: str, name: str) -> TopicName:
        full = self._topics.parse(topic)
        return full if name == UNPARTITIONED else full.partition(int(name))


async def _move(admin: Admin, concrete: TopicName, group: str, position: Position, bounds: Bounds) -> None:
    if group not in await admin.mark_delete_positions(concrete):
        await admin.create_subscription(concrete, group, EARLIEST)
    if position >= bounds.next:
        await admin.skip_all(concrete, group)  # a reset to a future position goes to the newest entry instead
    else:
        await admin.reset_to(concrete, group, EARLIEST if position[0] < 0 else (position[0], position[1]))


def _within(entry: EntryId, bounds: Bounds) -> Position:
    return min(max((*entry, 0), bounds.first), bounds.next)


def _count_back(ledgers: Sequence[Mapping[str, Any]], end: Position, count: int) -> Position:
    """Return the position `count` entries before `end`; the newest ledger has a count in `ledgers` only once it is closed."""
    ledger, missing = end[0], count - end[1]
    if ledger < 0:
        return end  # the topic never held anything
    if missing <= 0:
        return (ledger, end[1] - count, 0)
    for stats in sorted(ledgers, key=lambda stats: int(stats["ledgerId"]), reverse=True):
        if int(stats["ledgerId"]) < end[0]:
            ledger, entries = int(stats["ledgerId"]), int(stats["entries"])
            if entries >= missing:
                return (ledger, entries - missing, 0)
            missing -= entries
    return (ledger, 0, 0)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
