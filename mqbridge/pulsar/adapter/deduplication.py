"""Deduplication by the broker, based on producer name and sequence ids: the policy in force, and a warning without it."""

import logging

from mqbridge.errors import ClusterError, ServerRefused
from mqbridge.pulsar.client.admin import Admin
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)

POLICY = "deduplicationEnabled"


async def is_deduplicated(admin: Admin, topic: TopicName) -> bool:
    """Return the policy in force for an existing topic: its own, its namespace's, or the broker's. Raises ClusterError."""
    policy = None
    try:
        policy = await admin.applied_policy(topic, POLICY)
    except ServerRefused as error:
        log.debug("topic policies cannot be read: %s", error)  # they are disabled, or the broker is too old for them
    if policy is None:
        policy = (await admin.policies(f"{topic.tenant}/{topic.namespace}")).get(POLICY)
    if policy is None:
        policy = (await admin.call("GET", "/brokers/configuration/runtime")).get("brokerDeduplicationEnabled") == "true"
    return bool(policy)


class DeduplicationWarnings:
    """Logs one warning per topic without deduplication."""

    def __init__(self, admin: Admin | None) -> None:
        self._admin = admin
        self._warned: set[TopicName] = set()

    async def check(self, topic: TopicName) -> None:
        """Warn if the topic does not deduplicate; does nothing without a REST interface."""
        if self._admin is None or topic in self._warned:
            return
        try:
            if await is_deduplicated(self._admin, topic):
                return
        except ClusterError as error:
            log.info("cannot find out whether %s deduplicates: %s", topic, error)
            return
        if topic in self._warned:
            return  # a concurrent check has warned
        self._warned.add(topic)
        log.warning(
            "%s does not deduplicate: entries that are sent again over a new connection may be stored twice; enable it: "
            "pulsar-admin topics set-deduplication --enable %s (or namespaces set-deduplication --enable %s/%s)",
            topic,
            topic,
            topic.tenant,
            topic.namespace,
        )
