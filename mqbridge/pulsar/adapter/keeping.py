"""What keeps the messages of a topic, and what deletes them before they are consumed.

A broker deletes a closed ledger (closed by rollover, an unload or a restart) once every subscription has acknowledged it and its
retention is over. A topic without subscriptions waits for nobody: without retention, what was written a moment ago is gone.
A time to live and an evicting backlog quota acknowledge for subscriptions that are too slow.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mqbridge.errors import ServerRefused
from mqbridge.pulsar.client.admin import Admin
from mqbridge.pulsar.client.subscription import is_reader
from mqbridge.pulsar.wire.names import TopicName

EVICTION = "consumer_backlog_eviction"


class Policies(NamedTuple):
    """The policies that decide; of retention -1 is without limit."""

    minutes: int
    megabytes: int
    ttl_s: int
    """0 is for ever."""
    evicts: bool
    """A subscription with too much before it loses the oldest of it."""

    @property
    def retains(self) -> bool:
        """Something is kept beyond acknowledgement."""
        return self.minutes != 0 and self.megabytes != 0


async def policies_of(admin: Admin, topic: TopicName, *, exists: bool) -> Policies:
    """Those in force for a topic: its own, its namespace's, or the broker's. For a missing one the namespace's."""
    found = dict[str, Any]()
    if exists:
        try:
            found = {name: await admin.applied_policy(topic, name) for name in ("retention", "messageTTL", "backlogQuotaMap")}
        except ServerRefused:
            found = {}  # policies of topics are switched off, or the broker is too old for them
    if not found:
        of_namespace = await admin.policies(f"{topic.tenant}/{topic.namespace}")
        names = {
            "retention": "retention_policies",
            "messageTTL": "message_ttl_in_seconds",
            "backlogQuotaMap": "backlog_quota_map",
        }
        found = {name: of_namespace.get(theirs) for name, theirs in names.items()}
    retention, quotas = found["retention"] or {}, found["backlogQuotaMap"] or {}
    return Policies(
        retention.get("retentionTimeInMinutes", 0),
        retention.get("retentionSizeInMB", 0),
        found["messageTTL"] or 0,
        any(_evicts(quota) for quota in quotas.values()),
    )


def keeping_subscriptions(stats: Mapping[str, Any] | None) -> set[str]:
    """The subscriptions for which a partition keeps messages: those that outlive their consumers, and are not a broker's own.

    None are the statistics of a partition that was never used.
    """
    return {
        name
        for name, one in ({} if stats is None else stats["subscriptions"]).items()
        if one.get("isDurable", True) and not name.startswith("__") and not is_reader(name)
    }


def target_warnings(topic: TopicName, policies: Policies, kept_for: Mapping[str, Collection[str]]) -> list[str]:
    """Of a topic that is written to; `kept_for` are the subscriptions by partition name."""
    without = sorted(name for name, subscriptions in kept_for.items() if not subscriptions)
    found = _expiry(topic, policies, "a subscription")
    if without:
        where = f"{topic}" if len(without) == len(kept_for) else f"{topic} (partition {', '.join(without)})"
        remedy = (
            "make its subscriptions first, with `create: {subscriptions: [NAME]}` of the target or by letting its consumers"
            f" subscribe, or set retention of namespace {topic.tenant}/{topic.namespace}"
        )
        if not policies.retains:
            what = f"{where} has no subscription and no retention: the broker deletes what is written there within minutes"
            found.insert(0, f"{what} after a ledger is closed (rollover, unload, restart); {remedy}")
        elif (limit := _limit(policies)) is not None:
            found.insert(0, f"{where} has no subscription, and its retention keeps messages for {limit} only; {remedy}")
    return found


def group_warnings(topic: TopicName, policies: Policies, group: str) -> list[str]:
    """Of a topic that a subscription reads."""
    return _expiry(topic, policies, f"subscription {group!r}")


def _expiry(topic: TopicName, policies: Policies, whose: str) -> list[str]:
    found = []
    if policies.ttl_s:
        what = f"{topic} has a time to live: what is not consumed within {policies.ttl_s} s, {whose} never gets"
        found.append(f"{what}; raise or remove messageTTL")
    if policies.evicts:
        what = f"{topic} has a backlog quota with {EVICTION}: beyond it the oldest messages of {whose} are dropped unread"
        found.append(f"{what}; use producer_request_hold, which lets the producer wait")
    return found


def _limit(policies: Policies) -> str | None:
    limits = []
    if policies.minutes > 0:
        limits.append(f"{policies.minutes} minutes")
    if policies.megabytes > 0:
        limits.append(f"{policies.megabytes} MB")
    return " and ".join(limits) or None


def _evicts(quota: Mapping[str, Any]) -> bool:
    limited = any(quota.get(name, -1) > 0 for name in ("limit", "limitSize", "limitTime"))
    return limited and quota.get("policy") == EVICTION
