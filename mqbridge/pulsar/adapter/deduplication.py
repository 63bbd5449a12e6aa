"""Whether a broker drops what a producer sends twice, by the name of the producer and its sequence ids."""

import logging

from mqbridge.errors import ClusterError, ServerRefused
from mqbridge.pulsar.client.admin import Admin
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)

POLICY = "deduplicationEnabled"


async def is_deduplicated(admin: Admin, topic: TopicName) -> bool:
    """The policy in force for an existing topic: its own, its namespace's, or the broker's. Raises ClusterError."""
    found = None
    try:
        found = await admin.applied_policy(topic, POLICY)
    except ServerRefused as error:
        log.debug("policies of topics cannot be read: %s", error)  # they are switched off, or the broker is too old for them
    if found is None:
        found = (await admin.policies(f"{topic.tenant}/{topic.namespace}")).get(POLICY)
    if found is None:
        found = (await admin.call("GET", "/brokers/configuration/runtime")).get("brokerDeduplicationEnabled") == "true"
    return bool(found)


class DeduplicationWarnings:
    """Says once of each topic that what is sent twice there may be stored twice."""

    def __init__(self, admin: Admin | None) -> None:
        self._admin = admin
        self._warned: set[TopicName] = set()

    async def check(self, topic: TopicName) -> None:
        """Log it where it is so; nothing where nobody can be asked."""
        if self._admin is None or topic in self._warned:
            return
        try:
            if await is_deduplicated(self._admin, topic):
                return
        except ClusterError as error:
            log.info("whether %s deduplicates cannot be told: %s", topic, error)
            return
        if topic in self._warned:
            return  # somebody else asked at the same time
        self._warned.add(topic)
        log.warning(
            "%s does not deduplicate: what is sent again over a new connection may be stored twice; switch it on: "
            "pulsar-admin topics set-deduplication --enable %s (or namespaces set-deduplication --enable %s/%s)",
            topic,
            topic,
            topic.tenant,
            topic.namespace,
        )
