"""What people ask of a cluster's subscriptions and topics: who is a member, moving a subscription, finding a time.

All of it is the administrators' REST interface, each partition a topic of its own there. Positions are whole entries.
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
from mqbridge.pulsar.adapter.keeping import group_warnings, keeping_subscriptions, policies_of, target_warnings
from mqbridge.pulsar.adapter.topics import WHOLE, Topics
from mqbridge.pulsar.client.admin import Admin, TopicStats
from mqbridge.pulsar.client.admin_http import EXISTS
from mqbridge.pulsar.client.rights import Denied
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
"""Of the namespace: those that decide what becomes of messages."""


class PulsarOperations:
    """Of one cluster; `bounds` gives the bounds of a topic. Each call raises ClusterError, FATAL where it needs `admin_url`."""

    backlog_unit = "entries"
    """Each of which may hold many messages."""

    def __init__(
        self, cluster: str, topics: Topics, admin: Admin | None, bounds: Callable[[str], Awaitable[Mapping[str, Bounds]]]
    ) -> None:
        self._cluster, self._topics, self._admin, self._bounds = cluster, topics, admin, bounds
        self._deduplication = DeduplicationWarnings(admin)

    # --- groups -----------------------------------------------------------------------------------------------------

    async def groups(self, topic: str) -> list[str]:
        """The subscriptions of the topic, without those of our readers, which brokers forget a moment after they are closed."""
        await self._topics.existing(topic)
        names = await self._need_admin("listing groups").subscriptions(self._topics.parse(topic))
        return [name for name in names if not is_reader(name)]

    async def check_subscription(self, topic: str, group: str) -> None:
        """Raises ClusterError (FATAL) when it is not there, and brokers make none by themselves."""
        if group in await self.groups(topic):
            return
        full = self._topics.parse(topic)
        try:
            allowed = await self._makes_subscriptions(f"{full.tenant}/{full.namespace}")
        except Denied as error:
            log.info("whether brokers make subscription %r of %s by themselves cannot be told: %s", group, full, error)
            return
        if not allowed:
            raise ClusterError(
                f"{full} has no subscription {group!r}, and its brokers make none by themselves "
                "(allowAutoSubscriptionCreation): create it",
                Failure.FATAL,
            )

    async def _makes_subscriptions(self, namespace: str) -> bool:
        """By the policy of the namespace, for its tenant's administrators, or the setting of the brokers, for super users."""
        admin = self._need_admin("making a group")
        own = (await admin.policies(namespace)).get("autoSubscriptionCreationOverride")
        if own is not None:
            return bool(own["allowAutoSubscriptionCreation"])
        setting = (await admin.call("GET", "/brokers/configuration/runtime"))["allowAutoSubscriptionCreation"]
        return bool(setting == "true")

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The position behind everything that the subscription has acknowledged without a gap."""
        admin = self._need_admin("reading the positions of a group")
        marks = await self._each(topic, admin.mark_delete_positions)
        return {name: (each[group][0], each[group][1] + 1, 0) for name, each in marks.items() if group in each}

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Entries that the subscription has not acknowledged."""
        counted = await self._stats(topic, "counting a backlog")
        return {name: stats.backlog[group] for name, stats in counted.items() if group in stats.backlog}

    async def members(self, topic: str, group: str) -> list[Member]:
        """Its consumers by name. Of a failover subscription only the active one holds a partition."""
        held: dict[str, list[str]] = {}
        addresses: dict[str, str] = {}
        for name, stats in (await self._stats(topic, "listing the members of a group")).items():
            subscription = stats.raw["subscriptions"].get(group)
            if subscription is None:
                continue
            for consumer in subscription["consumers"]:
                who = consumer["consumerName"]
                addresses[who] = consumer.get("address", "")
                names = held.setdefault(who, [])
                if subscription["type"] != FAILOVER or subscription["activeConsumerName"] == who:
                    names.append(name)
        return [Member(who, addresses[who], tuple(names)) for who, names in sorted(held.items())]

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Reset the subscription, or create it there. FATAL while it has consumers, which the broker would cut off."""
        admin, bounds = self._need_admin("moving a group"), await self._bounds(topic)
        if present := await self.members(topic, group):
            names = ", ".join(member.id for member in present)
            raise ClusterError(f"group {group!r} is being consumed by {names}: stop it, then move it", Failure.FATAL)
        if unknown := positions.keys() - bounds.keys():
            full = self._topics.parse(topic)
            raise ClusterError(f"topic {full} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        await asyncio.gather(
            *(_move(admin, self._concrete(topic, name), group, to, bounds[name]) for name, to in positions.items())
        )

    # --- positions and settings -------------------------------------------------------------------------------------

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """By the time of publishing."""
        admin = self._need_admin("finding a time")
        bounds = await self._bounds(topic)
        found = await self._each(topic, lambda concrete: admin.id_at(concrete, time_ms))
        return {name: _within(entry, bounds[name]) for name, entry in found.items()}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """So many entries before the end, counted through the ledgers that are still there; else not beyond the newest ledger."""
        ends = {name: bounds.next for name, bounds in (await self._bounds(topic)).items()}
        if (admin := self._admin) is None:
            return {name: (ledger, max(entry - count, min(entry, 0)), 0) for name, (ledger, entry, _) in ends.items()}
        found = await self._each(topic, admin.internal_stats)
        return {name: _counted_back(stats["ledgers"], ends[name], count) for name, stats in found.items()}

    async def entries_of_ledgers(self, topic: str, partition: str) -> dict[int, int] | None:
        """How many entries the ledgers of a partition have by their ids; None where nobody can be asked."""
        if self._admin is None:
            return None
        try:
            stats = await self._admin.internal_stats(self._concrete(topic, partition))
        except ClusterError as error:
            if not self._admin.is_guess:
                raise
            log.info("the ledgers of %s are not counted: %s", topic, error)
            return None
        counts = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in stats["ledgers"]}
        newest, _, last = stats["lastConfirmedEntry"].partition(":")  # a ledger that is open counts 0
        return counts | {int(newest): max(counts.get(int(newest), 0), int(last) + 1)}

    async def settings(self, topic: str) -> Mapping[str, str]:
        """The policies of the topic's namespace that decide what becomes of messages, where they are set and can be read."""
        if self._admin is None:
            return {}
        await self._topics.existing(topic)
        full = self._topics.parse(topic)
        policies = await self._admin.policies(f"{full.tenant}/{full.namespace}")
        told = {ours: policies.get(theirs) for theirs, ours in _POLICIES.items()}
        return {name: _text(value) for name, value in told.items() if value is not None}

    # --- what becomes of messages -----------------------------------------------------------------------------------

    async def create_group(self, topic: str, group: str) -> None:
        """Create the subscription at the first message, in each partition where it is missing."""
        admin = self._need_admin("creating a subscription")

        async def create(concrete: TopicName) -> None:
            try:
                await admin.create_subscription(concrete, group, EARLIEST)
            except ServerRefused as error:
                if error.code != EXISTS:
                    raise

        await self._each(topic, create)

    def check_create_group(self) -> None:
        """Only the REST interface creates subscriptions without consuming."""
        self._need_admin("creating a subscription")

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """By the subscriptions, and the policies of retention, time to live and backlog."""
        full = self._topics.parse(topic)
        if not self._topics.is_kept(topic):
            return [f"{full} keeps nothing: who is not connected when a message comes never gets it; use a persistent topic"]
        if self._admin is None:
            if group is not None:
                return []
            what = f"whether {full} keeps what is written there cannot be told without the REST interface"
            return [f"{what}; set admin_url of cluster {self._cluster!r}"]
        names = await self._topics.names(topic)
        policies = await policies_of(self._admin, full, exists=names is not None)
        if group is not None:
            return group_warnings(full, policies, group)
        if names is None or planned:
            return target_warnings(full, policies, {name: set(planned) for name in names or (WHOLE,)})
        stats = await self._admin.stats_by_partition(full, len(names) if names != (WHOLE,) else 0)
        kept_for = {name: keeping_subscriptions(stats.get(str(self._concrete(topic, name)))) for name in names}
        return target_warnings(full, policies, kept_for)

    # --- what is sent twice -----------------------------------------------------------------------------------------

    async def deduplicates(self, topic: str) -> bool:
        """By the policy that is in force."""
        await self._topics.existing(topic)
        return await is_deduplicated(self._need_admin("reading policies"), self._topics.parse(topic))

    async def deduplicate(self, topic: str) -> None:
        """By the topic's own policy; returns when it is in force, brokers heed it a moment later."""
        await self._topics.existing(topic)
        await self._need_admin("setting policies").set_topic_policy(self._topics.parse(topic), POLICY, value=True)

    async def warn_undeduplicated(self, topic: str) -> None:
        """Log it once where the topic is not set up so."""
        await self._deduplication.check(self._topics.parse(topic))

    # --- for all of these -------------------------------------------------------------------------------------------

    def _need_admin(self, what: str) -> Admin:
        if self._admin is None:
            advice = f"add the admin_url of cluster {self._cluster!r} to its configuration"
            raise ClusterError(f"{what} needs admin_url: {advice}", Failure.FATAL)
        return self._admin

    async def _stats(self, topic: str, what: str) -> dict[str, TopicStats]:
        admin = self._need_admin(what)
        return await self._each(topic, admin.stats)

    async def _each(self, topic: str, call: Callable[[TopicName], Awaitable[T]]) -> dict[str, T]:
        names = await self._topics.existing(topic)
        answers = await asyncio.gather(*(call(self._concrete(topic, name)) for name in names))
        return dict(zip(names, answers, strict=True))

    def _concrete(self, topic: str, name: str) -> TopicName:
        full = self._topics.parse(topic)
        return full if name == WHOLE else full.partition(int(name))


async def _move(admin: Admin, concrete: TopicName, group: str, position: Position, bounds: Bounds) -> None:
    if group not in await admin.mark_delete_positions(concrete):
        await admin.create_subscription(concrete, group, EARLIEST)
    if position >= bounds.next:
        await admin.skip_all(concrete, group)  # a reset to what is not there yet goes to the newest entry instead
    else:
        await admin.reset_to(concrete, group, EARLIEST if position[0] < 0 else (position[0], position[1]))


def _within(place: EntryId, bounds: Bounds) -> Position:
    return min(max((*place, 0), bounds.first), bounds.next)


def _counted_back(ledgers: Sequence[Mapping[str, Any]], end: Position, count: int) -> Position:
    """`end` is behind the newest entry; the newest ledger counts its entries only when it is closed."""
    ledger, missing = end[0], count - end[1]
    if ledger < 0:
        return end  # it never held anything
    if missing <= 0:
        return (ledger, end[1] - count, 0)
    for one in sorted(ledgers, key=lambda one: int(one["ledgerId"]), reverse=True):
        if int(one["ledgerId"]) < end[0]:
            ledger, entries = int(one["ledgerId"]), int(one["entries"])
            if entries >= missing:
                return (ledger, entries - missing, 0)
            missing -= entries
    return (ledger, 0, 0)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
