"""Finds out whether a topic's broker deduplicates by producer name and sequence ids, and warns if it does not."""

import logging

from mqbridge.errors import ClusterError, ServerRefused
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)

DEDUPLICATION_POLICY = "deduplicationEnabled"
"""Name of the policy, the same for a topic and for a namespace."""


async def is_deduplicated(admin: Admin, topic: TopicName) -> bool:
    """Return True if an existing topic deduplicates, by its own policy, else its namespace's, else the broker's setting.

    Raises ClusterError.
    """
    policy = None  # None: not known yet, look at the next level
    try:
        policy = await admin.applied_policy(topic, DEDUPLICATION_POLICY)
    except ServerRefused as error:
        # Topic policies are disabled, or the broker is too old for them.
        log.debug("cannot read the policies of topic %s, reading those of its namespace instead: %s", topic, error)
    if policy is None:
        policy = (await admin.policies(f"{topic.tenant}/{topic.namespace}")).get(DEDUPLICATION_POLICY)
    if policy is None:
        policy = (await admin.call("GET", "/brokers/configuration/runtime")).get("brokerDeduplicationEnabled") == "true"
    return bool(policy)


class DeduplicationWarnings:
    """Logs one warning for each topic without deduplication; `admin` is None without a REST interface."""

    def __init__(self, admin: Admin | None) -> None:
        self._admin = admin
        self._warned: set[TopicName] = set()

    async def check(self, topic: TopicName) -> None:
        """Warn once if the topic does not deduplicate; each call before that asks the broker. Without `admin`, does nothing."""
        if self._admin is None or topic in self._warned:
            return
        try:
            if await is_deduplicated(self._admin, topic):
                return
        except ClusterError as error:
            log.info("cannot find out whether topic %s deduplicates, so there is no warning if it does not: %s", topic, error)
            return
        if topic in self._warned:
            return  # a concurrent check has warned
        self._warned.add(topic)
        log.warning(
            "topic %s does not deduplicate: entries sent again after a lost connection may be stored twice; enable it with "
            "pulsar-admin topics set-deduplication --enable %s (or namespaces set-deduplication --enable %s/%s)",
            topic,
            topic,
            topic.tenant,
            topic.namespace,
        )
