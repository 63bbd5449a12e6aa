"""Parses topic names: `persistent://tenant/namespace/topic`, their short forms, and the names of partitions.

The short forms are `topic` (in a default namespace) and `tenant/namespace/topic`. The old form of the full name, with a cluster
between tenant and namespace, is also accepted: then `TopicName.namespace` is `cluster/namespace`.
"""

import re
from dataclasses import dataclass

PERSISTENT = "persistent"
DOMAINS = (PERSISTENT, "non-persistent")
DEFAULT_NAMESPACE = "public/default"

_ENTITY = re.compile(r"[-=:.\w]+\Z", re.ASCII)
"""Name of a tenant, cluster or namespace."""
PARTITION_INFIX = "-partition-"
"""Separates the name of a topic from the index of its partition."""
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})\Z", re.DOTALL)
"""The name of a partition. With more digits it is another topic: no broker has so many partitions."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A parsed topic name: of a topic, or of one partition."""

    domain: str
    """`persistent` or `non-persistent`."""
    tenant: str
    namespace: str
    """Namespace without its tenant."""
    local: str
    """The last part of the name, with the suffix `-partition-INDEX` if it names a partition."""

    def __str__(self) -> str:
        return f"{self.domain}://{self.path}"

    @property
    def path(self) -> str:
        """`tenant/namespace/topic`."""
        return f"{self.tenant}/{self.namespace}/{self.local}"

    def short(self, default_namespace: str = DEFAULT_NAMESPACE) -> str:
        """Return the shortest text that `parse_topic` turns into this name with the same `default_namespace`."""
        if self.domain != PERSISTENT or "/" in self.namespace:  # the old form has no short form
            return str(self)
        return self.local if f"{self.tenant}/{self.namespace}" == default_namespace else self.path

    def partition(self, index: int) -> "TopicName":
        """Return the name of one partition of this topic."""
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}-partition-{index}")

    @property
    def partition_index(self) -> int:
        """Partition index in this name, -1 without one."""
        match = _PARTITION.match(self.local)
        return int(match[2]) if match else -1

    @property
    def parent(self) -> "TopicName":
        """The partitioned topic that this partition belongs to; the name itself if it does not name a partition."""
        match = _PARTITION.match(self.local)
        return TopicName(self.domain, self.tenant, self.namespace, match[1]) if match else self


def parse_topic(text: str, default_namespace: str = DEFAULT_NAMESPACE) -> TopicName:
    """Parse any form of a topic name. Raises ValueError for an invalid name."""
    domain, scheme, path = text.partition("://")
    if not scheme:
        domain, path = PERSISTENT, text if "/" in text else f"{default_namespace}/{text}"
    if domain not in DOMAINS:
        raise ValueError(f"topic name {text!r}: {domain!r} is neither persistent nor non-persistent")
    parts = path.split("/", 3)
    if len(parts) < 3 or (len(parts) == 4 and not scheme):
        raise ValueError(f"topic name {text!r}: write topic, tenant/namespace/topic or persistent://tenant/namespace/topic")
    *entities, local = parts
    for entity in entities:
        if not _ENTITY.match(entity):
            raise ValueError(f"topic name {text!r}: {entity!r} must consist of letters, digits and - = : . _")
    if not local.strip() or "/" in local:
        raise ValueError(f"topic name {text!r}: its last part is empty or contains a slash")
    return TopicName(domain, entities[0], "/".join(entities[1:]), local)
