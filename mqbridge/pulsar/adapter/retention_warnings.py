"""Reads the retention policies of topics, and finds those by which brokers delete messages before they are consumed.

A broker deletes a closed ledger (closed by rollover, an unload or a restart) once every subscription has acknowledged it and its
retention time is over. A topic without subscriptions and without retention loses messages that were written a moment ago.
A time to live and an evicting backlog quota make the broker acknowledge messages that a slow subscription has not consumed. An
expiration time makes it delete subscriptions without consumers.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mqbridge.errors import ServerRefused
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.consumer.subscription import is_reader
from mqbridge.pulsar.wire.names import TopicName

EVICTION = "consumer_backlog_eviction"
"""Backlog quota policy by which the broker acknowledges the oldest messages of a subscription beyond the quota."""


class RetentionPolicies(NamedTuple):
    """The policies that decide how long messages are kept."""

    minutes: int
    """Retention time after acknowledgement, in minutes; -1 is unlimited, 0 is none."""
    megabytes: int
    """Size up to which acknowledged messages are kept, in megabytes; -1 is unlimited, 0 is none."""
    ttl_s: int
    """Time to live in seconds; 0 is unlimited."""
    evicts: bool
    """True if a subscription loses its oldest messages when its backlog exceeds the quota."""
    expiration_minutes: int
    """Minutes after which a subscription without consumers is deleted; 0 is never."""

    @property
    def retains(self) -> bool:
        """True if messages are retained after acknowledgement."""
        return self.minutes != 0 and self.megabytes != 0  # brokers delete messages beyond either limit


async def effective_policies(admin: Admin, topic: TopicName, *, exists: bool, needs_retention: bool = False) -> RetentionPolicies:
    """Return the policies in force for an existing topic: its own, its namespace's or the broker's.

    For a missing topic, or where topic policies cannot be read, return the policies of the namespace. If it has no retention
    policy, the retention is the brokers' default, which only super users may read: with `needs_retention` it is read, and
    AccessDenied is raised for other roles; otherwise the result has no retention. May raise any other ClusterError.
    """
    policies = dict[str, Any]()
    of_namespace = await admin.policies(f"{topic.tenant}/{topic.namespace}")
    if exists:
        try:
            policies = {name: await admin.applied_policy(topic, name) for name in ("retention", "messageTTL", "backlogQuotaMap")}
        except ServerRefused:
            policies = {}  # topic policies are disabled, or the broker is too old for them
    if not policies:
        names = {
            "retention": "retention_policies",
            "messageTTL": "message_ttl_in_seconds",
            "backlogQuotaMap": "backlog_quota_map",
        }
        policies = {name: of_namespace.get(name_in_namespace) for name, name_in_namespace in names.items()}
        if policies["retention"] is None and needs_retention:
            policies["retention"] = await _default_retention(admin)
    retention, quotas = policies["retention"] or {}, policies["backlogQuotaMap"] or {}
    return RetentionPolicies(
        retention.get("retentionTimeInMinutes", 0),
        retention.get("retentionSizeInMB", 0),
        policies["messageTTL"] or 0,
        any(_evicts(quota) for quota in quotas.values()),
        of_namespace.get("subscription_expiration_time_minutes") or 0,
    )


async def _default_retention(admin: Admin) -> dict[str, int]:
    """Return the brokers' retention of namespaces without a policy. Raises AccessDenied if the role is no super user."""
    settings = await admin.call("GET", "/brokers/configuration/runtime")
    return {
        "retentionTimeInMinutes": int(settings.get("defaultRetentionTimeInMinutes", 0)),
        "retentionSizeInMB": int(settings.get("defaultRetentionSizeInMB", 0)),
    }


def retaining_subscriptions(stats: Mapping[str, Any] | None) -> set[str]:
    """Return the durable subscriptions for which a partition retains messages.

    Those of brokers (`__...`) and of mqbridge's readers are left out. `stats` are the partition's statistics; None for a
    partition that was never used.
    """
    return {
        name
        for name, subscription in ({} if stats is None else stats["subscriptions"]).items()
        if subscription.get("isDurable", True) and not name.startswith("__") and not is_reader(name)
    }


def why_unprotected(topic: TopicName, policies: RetentionPolicies, subscriptions: Mapping[str, Collection[str]]) -> str | None:
    """Return why messages written to the topic are deleted before anybody has read them; None if they are kept.

    `subscriptions` are the subscriptions that retain messages, by partition name.
    """
    if policies.retains or (where := _unsubscribed(topic, subscriptions)) is None:
        return None
    problem = f"{where} has no subscription and no retention: the broker deletes messages within minutes"
    return f"{problem} after a ledger is closed (rollover, unload, restart); {_remedy(topic)}"


def target_warnings(topic: TopicName, policies: RetentionPolicies, subscriptions: Mapping[str, Collection[str]]) -> list[str]:
    """Return the warnings for a target topic, without the reason of `why_unprotected`."""
    warnings = _expiry_warnings(topic, policies, "a subscription")
    where, limit = _unsubscribed(topic, subscriptions), _retention_limit(policies)
    if where is not None and policies.retains and limit is not None:
        problem = f"{where} has no subscription, and its retention deletes messages beyond {limit}"
        warnings.insert(0, f"{problem}; {_remedy(topic)}")
    return warnings


def _unsubscribed(topic: TopicName, subscriptions: Mapping[str, Collection[str]]) -> str | None:
    """Return the topic as text, with its partitions without subscription if others have one; None if all have one."""
    partitions = sorted(partition for partition, names in subscriptions.items() if not names)
    if not partitions:
        return None
    return f"topic {topic}" if len(partitions) == len(subscriptions) else f"topic {topic} (partition {', '.join(partitions)})"


def _remedy(topic: TopicName) -> str:
    return (
        "create its subscriptions first, with `create: {subscriptions: [NAME]}` of the target or by letting its consumers"
        f" subscribe, or set retention of namespace {topic.tenant}/{topic.namespace}"
    )


def subscription_warnings(topic: TopicName, policies: RetentionPolicies, group: str) -> list[str]:
    """Return the warnings for a source topic that this subscription reads."""
    return _expiry_warnings(topic, policies, f"subscription {group!r}")


def _expiry_warnings(topic: TopicName, policies: RetentionPolicies, subscription: str) -> list[str]:
    """Return the warnings about the loss of unread messages with a subscription, which is worded in the text as given."""
    warnings = []
    if policies.ttl_s:
        problem = (
            f"topic {topic} has a time to live: {subscription} loses messages that it does not consume within {policies.ttl_s} s"
        )
        warnings.append(f"{problem}; raise or remove messageTTL")
    if policies.evicts:
        effect = f"beyond the quota the oldest messages of {subscription} are deleted unread"
        problem = f"topic {topic} has a backlog quota with {EVICTION}: {effect}"
        warnings.append(f"{problem}; use the policy producer_request_hold, which makes producers wait instead")
    if policies.expiration_minutes:
        time = f"{policies.expiration_minutes} minutes"
        effect = f"{subscription} is deleted, with its unread messages, when it had no consumer for {time}"
        warnings.append(f"namespace {topic.tenant}/{topic.namespace}: {effect}; raise or remove subscriptionExpirationTime")
    return warnings


def _retention_limit(policies: RetentionPolicies) -> str | None:
    """Return the limits of the retention as text: messages beyond one of them are deleted. None if it is unlimited."""
    limits = []
    if policies.minutes > 0:
        limits.append(f"{policies.minutes} minutes")
    if policies.megabytes > 0:
        limits.append(f"{policies.megabytes} MB")
    return " or ".join(limits) or None


def _evicts(quota: Mapping[str, Any]) -> bool:
    """Return True if this backlog quota has a limit and drops messages beyond it."""
    # `limit` and `limitSize` are bytes (older and newer brokers), `limitTime` is seconds; without a limit they are not above 0.
    limited = any(quota.get(name, -1) > 0 for name in ("limit", "limitSize", "limitTime"))
    return limited and quota.get("policy") == EVICTION
