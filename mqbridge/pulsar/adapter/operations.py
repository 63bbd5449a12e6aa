"""Administrative requests about subscriptions and topics: members, backlog, moving a subscription, finding a publish time.

Nearly all use the REST interface, which treats each partition as a topic of its own. Returned positions are the beginnings of
entries.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from mqbridge.adapter.operations import Member
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.message import Position
from mqbridge.net.http_client import reads_json
from mqbridge.pulsar.adapter.deduplication import DEDUPLICATION_POLICY, DeduplicationWarnings, is_deduplicated
from mqbridge.pulsar.adapter.retention_warnings import (
    effective_policies,
    retaining_subscriptions,
    subscription_warnings,
    target_warnings,
    why_unprotected,
)
from mqbridge.pulsar.adapter.topics import UNPARTITIONED, Topics
from mqbridge.pulsar.client.admin.admin import Admin, TopicStats
from mqbridge.pulsar.client.admin.admin_http import HTTP_CONFLICT, HTTP_NOT_FOUND, HTTP_PRECONDITION_FAILED
from mqbridge.pulsar.client.connection.authorization import AccessDenied
from mqbridge.pulsar.client.consumer.subscription import is_reader
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId
from mqbridge.pulsar.wire.names import TopicName
from mqbridge.pulsar.wire.schemas import Schema

log = logging.getLogger(__name__)

T = TypeVar("T")

FAILOVER = "Failover"
"""Subscription type as topic statistics spell it."""
_PERSISTENT_REMEDY = "use a persistent topic"
_STORAGE_POLICIES = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "message_ttl_s",
    "deduplicationEnabled": "deduplication",
    "compaction_threshold": "compaction_threshold",
    "schema_compatibility_strategy": "schema_compatibility",
}
"""Policies of a namespace that decide about the storage of messages -> their names in `settings`."""


class PulsarOperations:
    """`Operations` of one cluster. Without `admin_url`, those that need the REST interface raise ClusterError (FATAL).

    `bounds` is the method of the cluster that requests a topic's bounds.
    """

    backlog_unit = "entries"
    """`backlog` counts entries, each of which may hold many messages."""

    def __init__(
        self, cluster: str, topics: Topics, admin: Admin | None, bounds: Callable[[str], Awaitable[Mapping[str, Bounds]]]
    ) -> None:
        self._cluster, self._topics = cluster, topics
        self._admin, self._bounds = admin, bounds
        self._deduplication = DeduplicationWarnings(admin)

    # --- groups -----------------------------------------------------------------------------------------------------

    async def groups(self, topic: str) -> list[str]:
        """Return the subscriptions of the topic.

        The temporary subscriptions of mqbridge's readers are left out: a broker drops them a moment after the reader is closed.
        """
        await self._topics.require_partition_names(topic)
        names = await self._require_admin("listing groups").subscriptions(self._topics.parse(topic))
        return [name for name in names if not is_reader(name)]

    @reads_json
    async def check_subscription(self, topic: str, group: str) -> None:
        """Raise ClusterError (FATAL) if the subscription does not exist and brokers do not auto-create it.

        If this client may not read whether they do, it assumes that they do.
        """
        if group in await self.groups(topic):
            return
        full = self._topics.parse(topic)
        try:
            allowed = await self._auto_creates_subscriptions(f"{full.tenant}/{full.namespace}")
        except AccessDenied as error:
            text = "cannot find out whether brokers auto-create subscription %r of topic %s, assuming that they do: %s"
            log.info(text, group, full, error)
            return
        if not allowed:
            raise ClusterError(
                f"topic {full} has no subscription {group!r}, and its brokers do not auto-create subscriptions "
                "(allowAutoSubscriptionCreation): create the subscription",
                Failure.FATAL,
            )

    async def _auto_creates_subscriptions(self, namespace: str) -> bool:
        """Return True if brokers auto-create subscriptions in this namespace, by its policy or else by the brokers' setting.

        Reading the policy requires an administrator of the tenant; reading the brokers' setting requires a super user.
        """
        admin = self._require_admin("creating a group")
        policy = (await admin.policies(namespace)).get("autoSubscriptionCreationOverride")
        if policy is not None:
            return bool(policy["allowAutoSubscriptionCreation"])
        setting = (await admin.call("GET", "/brokers/configuration/runtime"))["allowAutoSubscriptionCreation"]
        return bool(setting == "true")

    @reads_json
    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the position after everything acknowledged without a gap, by partition; only where the subscription exists."""
        admin = self._require_admin("reading the positions of a group")
        positions = await self._for_each_partition(topic, admin.mark_delete_positions)
        last_acknowledged = {name: by_group[group] for name, by_group in positions.items() if group in by_group}
        return {name: (ledger, entry + 1, 0) for name, (ledger, entry) in last_acknowledged.items()}

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the number of entries that the subscription has not acknowledged, by partition."""
        all_stats = await self._stats(topic, "counting a backlog")
        return {name: stats.backlog[group] for name, stats in all_stats.items() if group in stats.backlog}

    @reads_json
    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the consumers, sorted by name. On a failover subscription only the active consumer holds a partition."""
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
        """Move the subscription to these positions, given by partition name; create it where it is missing.

        FATAL while the subscription has consumers: the broker would disconnect them.
        """
        admin, bounds = self._require_admin("moving a group"), await self._bounds(topic)
        if members := await self.members(topic, group):
            names = ", ".join(member.id for member in members)
            raise ClusterError(
                f"subscription {group!r} has consumers ({names}): stop them, then move the subscription", Failure.FATAL
            )
        if unknown := positions.keys() - bounds.keys():
            full = self._topics.parse(topic)
            raise ClusterError(f"topic {full} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        await asyncio.gather(
            *(
                _move_partition(admin, self._partition_topic(topic, name), group, to, bounds[name])
                for name, to in positions.items()
            )
        )

    # --- positions and settings -------------------------------------------------------------------------------------

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return, by partition name, the position of the first entry published at this time (ms since the epoch) or later."""
        admin = self._require_admin("finding a time")
        bounds = await self._bounds(topic)
        entries = await self._for_each_partition(topic, lambda partition_topic: admin.id_at(partition_topic, time_ms))
        return {name: _clamp(entry, bounds[name]) for name, entry in entries.items()}

    @reads_json
    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return the position `count` entries before the end, by partition name.

        Without `admin_url` the sizes of earlier ledgers are unknown: then the position is in the newest ledger, at its beginning
        if it holds fewer entries.
        """
        ends = {name: bounds.next for name, bounds in (await self._bounds(topic)).items()}
        if (admin := self._admin) is None:
            # If the partition never held a message, its end has the entry -1, and is returned unchanged.
            return {name: (ledger, max(entry - count, min(entry, 0)), 0) for name, (ledger, entry, _) in ends.items()}
        all_stats = await self._for_each_partition(topic, admin.internal_stats)
        return {name: _count_back(stats["ledgers"], ends[name], count) for name, stats in all_stats.items()}

    @reads_json
    async def entries_of_ledgers(self, topic: str, partition: str) -> dict[int, int] | None:
        """Return the number of entries of each ledger of a partition, by ledger id; None without a REST interface.

        None is also returned if the `admin_url` was guessed from the service URL, and does not work.
        """
        if self._admin is None:
            return None
        try:
            stats = await self._admin.internal_stats(self._partition_topic(topic, partition))
        except ClusterError as error:
            if not self._admin.is_guess:
                raise
            log.info(
                "topic %s partition %s: cannot read the entry counts of its ledgers at the admin_url that was guessed from "
                "service_url, so all entries before the last ledger are one range: %s",
                topic,
                partition,
                error,
            )
            return None
        counts = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in stats["ledgers"]}
        # The statistics report an open ledger with 0 entries; the id of its last entry (LEDGER:ENTRY) shows the number.
        newest, _, last = stats["lastConfirmedEntry"].partition(":")
        return counts | {int(newest): max(counts.get(int(newest), 0), int(last) + 1)}

    @reads_json
    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the policies of the topic's namespace that decide about the storage of messages; unset ones are left out."""
        if self._admin is None:
            return {}
        await self._topics.require_partition_names(topic)
        full = self._topics.parse(topic)
        policies = await self._admin.policies(f"{full.tenant}/{full.namespace}")
        values = {name: policies.get(policy) for policy, name in _STORAGE_POLICIES.items()}
        return {name: _setting_text(value) for name, value in values.items() if value is not None}

    @reads_json
    async def check_schema(self, topic: str, schema: Schema | None) -> None:
        """Raise ClusterError (FATAL) if the topic refuses producers with this schema, or with None without any.

        Assumes that it accepts them if the credentials may not ask that, or the broker is too old for the question.
        """
        full = self._topics.parse(topic)
        admin = self._require_admin("checking a schema")
        try:
            if (registered := await admin.schema_definition(full)) is None:
                return  # a topic without schema takes any
            if schema is None:
                is_accepted = not await admin.enforces_schemas(f"{full.tenant}/{full.namespace}")
            else:
                is_accepted = registered == schema.definition or await admin.is_compatible(full, schema)
        except ServerRefused as error:
            log.info("cannot find out whether topic %s accepts the schema of its target, assuming that it does: %s", full, error)
            return
        if is_accepted:
            return
        if schema is None:
            problem = f"topic {full} has a schema, and its namespace refuses producers without one"
            raise ClusterError(f"{problem}: write schema_type: topic in the target's options", Failure.FATAL)
        raise ClusterError(f"topic {full} has a schema that is incompatible with the target's schema", Failure.FATAL)

    # --- retention --------------------------------------------------------------------------------------------------

    async def create_group(self, topic: str, group: str) -> None:
        """Create the subscription at the earliest message of each partition where it is missing."""
        admin = self._require_admin("creating a subscription")

        async def create(partition_topic: TopicName) -> None:
            try:
                await admin.create_subscription(partition_topic, group, EARLIEST)
            except ServerRefused as error:
                # A conflict: the subscription exists. It is busy while another instance creates it and moves it to the beginning.
                is_busy = error.code == HTTP_PRECONDITION_FAILED and group in await admin.subscriptions(partition_topic)
                if error.code != HTTP_CONFLICT and not is_busy:
                    raise

        await self._for_each_partition(topic, create)

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete the subscription of a topic. Raises ClusterError, FATAL while it has consumers."""
        admin = self._require_admin("deleting a subscription")
        full = self._topics.parse(topic)
        try:
            await admin.delete_subscription(full, group)
        except ServerRefused as error:
            if error.code == HTTP_PRECONDITION_FAILED:
                problem = f"subscription {group!r} of topic {full} cannot be deleted while it has consumers"
                raise ClusterError(f"{problem}: stop them ({error})", Failure.FATAL) from error
            if error.code != HTTP_NOT_FOUND:
                raise

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic; do nothing if it does not exist. Raises ClusterError, FATAL while it has producers or consumers.

        Brokers refuse to delete a partition in use, but not the other partitions; so this asks all of them before.
        """
        admin = self._require_admin("deleting a topic")
        full = self._topics.parse(topic)
        problem = f"topic {full} cannot be deleted while producers or consumers are connected"
        if (names := await self._topics.partition_names(topic)) is None:
            return
        if users := await self._users(admin, [self._partition_topic(topic, name) for name in names]):
            raise ClusterError(f"{problem}: stop {', '.join(users)}", Failure.FATAL)
        try:
            await admin.delete(full)
        except ServerRefused as error:
            if error.code != HTTP_PRECONDITION_FAILED:
                raise
            raise ClusterError(f"{problem}: stop them ({error})", Failure.FATAL) from error

    @reads_json
    async def _users(self, admin: Admin, partition_topics: Sequence[TopicName]) -> list[str]:
        """Return the names of the producers and consumers that are connected to these partitions."""
        users: set[str] = set()
        for stats in await asyncio.gather(*map(admin.stats, partition_topics)):
            users.update(producer["producerName"] for producer in stats.raw["publishers"])
            for subscription in stats.raw["subscriptions"].values():
                users.update(consumer["consumerName"] or "a consumer without a name" for consumer in subscription["consumers"])
        return sorted(users)

    def check_create_group(self) -> None:
        """Raise ClusterError without `admin_url`: only the REST interface creates subscriptions without consuming."""
        self._require_admin("creating a subscription")

    @reads_json
    async def why_unprotected(self, topic: str, planned: Collection[str] = ()) -> str | None:
        """Return why the broker deletes messages of this target before they are consumed; see `ReportsUnprotected`.

        For a persistent topic, this is unknown without `admin_url`, and if one was guessed that does not work.
        """
        full = self._topics.parse(topic)
        if not self._topics.is_persistent(topic):
            problem = f"topic {full} is not persistent: the broker drops messages that no connected consumer takes"
            return f"{problem}; {_PERSISTENT_REMEDY}"
        if self._admin is None:
            return None
        try:
            return await self._why_unprotected(self._admin, topic, planned)
        except ClusterError as error:
            if not self._admin.is_guess:
                raise
            log.info("topic %s: cannot find out whether its broker keeps unread messages: %s", full, error)
            return None

    async def _why_unprotected(self, admin: Admin, topic: str, planned: Collection[str]) -> str | None:
        full, names = self._topics.parse(topic), await self._topics.partition_names(topic)
        subscriptions = await self._retaining_subscriptions(admin, topic, names, planned)
        if all(subscriptions.values()):  # the usual case, in which the policies need not be read
            return None
        policies = await effective_policies(admin, full, exists=names is not None, needs_retention=True)
        return why_unprotected(full, policies, subscriptions)

    @reads_json
    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return warnings about limited retention, time to live and backlog quota; see `Operations.warnings`.

        With `group` the topic is a source that this subscription reads; without `admin_url` a source is not checked. If `group`
        is None, the topic is a target, and `planned` are the subscriptions that are created together with it.
        """
        full = self._topics.parse(topic)
        if not self._topics.is_persistent(topic):  # of a target, `why_unprotected` says this
            problem = f"topic {full} is not persistent: disconnected consumers miss messages; {_PERSISTENT_REMEDY}"
            return [] if group is None else [problem]
        if self._admin is None:
            if group is not None:
                return []
            problem = f"cannot check the retention of topic {full} without the REST interface"
            return [f"{problem}; set admin_url of cluster {self._cluster!r}"]
        names = await self._topics.partition_names(topic)
        if group is not None:
            return subscription_warnings(full, await effective_policies(self._admin, full, exists=names is not None), group)
        subscriptions = await self._retaining_subscriptions(self._admin, topic, names, planned)
        needs_retention = not all(subscriptions.values())
        policies = await effective_policies(self._admin, full, exists=names is not None, needs_retention=needs_retention)
        return target_warnings(full, policies, subscriptions)

    async def _retaining_subscriptions(
        self, admin: Admin, topic: str, names: Collection[str] | None, planned: Collection[str]
    ) -> dict[str, Collection[str]]:
        """Return the subscriptions that retain messages, by partition name; `names` is None if the topic does not exist.

        `planned` subscriptions count as subscriptions of every partition.
        """
        if names is None or planned:
            return dict.fromkeys(names or (UNPARTITIONED,), planned)
        full = self._topics.parse(topic)
        stats = await admin.stats_by_partition(full, 0 if UNPARTITIONED in names else len(names))
        return {name: retaining_subscriptions(stats.get(str(self._partition_topic(topic, name)))) for name in names}

    async def why_unchunked(self, topic: str) -> str:
        """Return why messages in chunks would be lost in this topic; empty if they are not, or if that cannot be known.

        Compaction keeps only the last entry of a key, and so only the last chunk of a message.
        """
        if self._admin is None or not self._topics.is_persistent(topic):
            return ""
        full, threshold = self._topics.parse(topic), None
        try:
            try:
                threshold = await self._admin.applied_policy(full, "compactionThreshold")
            except ServerRefused:  # topic policies are disabled, or the broker is too old for them
                threshold = (await self._admin.policies(f"{full.tenant}/{full.namespace}")).get("compaction_threshold")
        except ServerRefused:  # the role may not read policies
            return ""
        except ClusterError as error:
            text = "cannot find out whether topic %s is compacted, which would lose messages above the broker's limit: %s"
            log.warning(text, full, error)
            return ""
        return f"compaction of topic {full} would keep only the last chunk" if threshold else ""

    # --- deduplication ----------------------------------------------------------------------------------------------

    @reads_json
    async def deduplicates(self, topic: str) -> bool:
        """Return True if deduplication is enabled for the topic, by its own policy, its namespace's or the broker's setting."""
        await self._topics.require_partition_names(topic)
        return await is_deduplicated(self._require_admin("reading policies"), self._topics.parse(topic))

    async def deduplicate(self, topic: str) -> None:
        """Enable deduplication by the topic's own policy; brokers apply it a moment after this returns."""
        await self._topics.require_partition_names(topic)
        admin = self._require_admin("setting policies")
        await admin.set_topic_policy(self._topics.parse(topic), DEDUPLICATION_POLICY, value=True)

    async def warn_undeduplicated(self, topic: str) -> None:
        """Log one warning if the topic does not deduplicate."""
        await self._deduplication.check(self._topics.parse(topic))

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _require_admin(self, action: str) -> Admin:
        """Return the REST client. Raises ClusterError (FATAL) without one; the error says that `action` needs it."""
        if self._admin is None:
            advice = f"add the admin_url of cluster {self._cluster!r} to its configuration"
            raise ClusterError(f"{action} needs admin_url: {advice}", Failure.FATAL)
        return self._admin

    async def _stats(self, topic: str, action: str) -> dict[str, TopicStats]:
        """Return the topic's statistics by partition name."""
        admin = self._require_admin(action)
        return await self._for_each_partition(topic, admin.stats)

    async def _for_each_partition(self, topic: str, call: Callable[[TopicName], Awaitable[T]]) -> dict[str, T]:
        """Call `call` with the topic name of each partition, concurrently; return the results by partition name."""
        names = await self._topics.require_partition_names(topic)
        results = await asyncio.gather(*(call(self._partition_topic(topic, name)) for name in names))
        return dict(zip(names, results, strict=True))

    def _partition_topic(self, topic: str, name: str) -> TopicName:
        """Return the topic name of the partition with this name."""
        full = self._topics.parse(topic)
        return full if name == UNPARTITIONED else full.partition(int(name))


async def _move_partition(admin: Admin, partition_topic: TopicName, group: str, position: Position, bounds: Bounds) -> None:
    """Move the subscription of one partition to this position, and create the subscription first if it is missing."""
    if group not in await admin.mark_delete_positions(partition_topic):
        await admin.create_subscription(partition_topic, group, EARLIEST)
    if position >= bounds.next:
        # A reset to a position after the newest entry would move the subscription to the newest entry instead.
        await admin.skip_all(partition_topic, group)
    else:
        # A position with ledger -1 was taken when the partition had held no message yet: everything comes after it.
        await admin.reset_to(partition_topic, group, EARLIEST if position[0] < 0 else (position[0], position[1]))


def _clamp(entry: EntryId, bounds: Bounds) -> Position:
    """Return the position of this entry; outside of the partition's bounds, the nearer bound."""
    return min(max((*entry, 0), bounds.first), bounds.next)


def _count_back(ledgers: Sequence[Mapping[str, Any]], end: Position, count: int) -> Position:
    """Return the position `count` entries before `end`, or the first position if there are fewer.

    `ledgers` are the REST interface's statistics. They have the entry count of closed ledgers only; that of the newest
    ledger is the entry number in `end`.
    """
    ledger, remaining = end[0], count - end[1]
    if ledger < 0:
        return end  # the partition never held a message
    if remaining <= 0:
        return (ledger, end[1] - count, 0)
    for stats in sorted(ledgers, key=lambda stats: int(stats["ledgerId"]), reverse=True):
        if int(stats["ledgerId"]) < end[0]:
            ledger, entries = int(stats["ledgerId"]), int(stats["entries"])
            if entries >= remaining:
                return (ledger, entries - remaining, 0)
            remaining -= entries
    return (ledger, 0, 0)


def _setting_text(value: Any) -> str:
    """Return a policy value as text for display."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
