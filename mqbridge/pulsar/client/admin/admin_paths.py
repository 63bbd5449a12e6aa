"""Paths of objects in the admin interface. A name that a server could take for another object is refused.

Brokers decode every path once, like any web server, and subscription names a second time, as in the query of a URL: there `+`
means a space, and `%2F` a slash. The second decoding does not change a name without `+` and `%`, so its path is right for
every server.
"""

import re
from urllib.parse import quote

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.wire.names import TopicName

_CHANGED_BY_SECOND_DECODING = re.compile("[%+]")
_DOTS = frozenset({".", ".."})
"""Names that clients and servers remove from paths, with the name before `..`, even if the dots are encoded."""


def tenant_path(tenant: str) -> str:
    """Return a tenant's path below /admin/v2. Raises ClusterError if the name cannot be addressed."""
    return f"/tenants/{_segment(tenant, 'tenant')}"


def namespace_path(namespace: str, *, under: str = "/namespaces") -> str:
    """Return the path of a namespace (`tenant/namespace`) or of all namespaces of a tenant (`tenant`), below `under`.

    Raises ClusterError if the name cannot be addressed.
    """
    return "/".join((under, *(_segment(part, "namespace") for part in namespace.split("/"))))


def path_of(topic: TopicName) -> str:
    """Return a topic's path below /admin/v2. Raises ClusterError if the name cannot be addressed."""
    namespace = namespace_path(f"{topic.tenant}/{topic.namespace}", under=f"/{topic.domain}")
    return f"{namespace}/{_segment(topic.local, 'topic')}"


def subscription_path(topic: TopicName, name: str) -> str:
    """Return a subscription's path below /admin/v2. Raises ClusterError if the name cannot be addressed."""
    return f"{path_of(topic)}/subscription/{_segment(_escape(name), 'subscription')}"


def schema_path(topic: TopicName) -> str:
    """Return the path of a topic's schemas below /admin/v2. Raises ClusterError if the name cannot be addressed."""
    namespace = namespace_path(f"{topic.tenant}/{topic.namespace}", under="/schemas")
    return f"{namespace}/{_segment(topic.local, 'topic')}"


def name_decoded_once(subscription: str) -> str | None:
    """Return the subscription that a server would find at this one's path if it decoded once; None if it is the same one."""
    escaped = _escape(subscription)
    return None if escaped == subscription else escaped


def _escape(subscription: str) -> str:
    """Encode a subscription name for the second decoding, but only the characters that it would change."""
    return _CHANGED_BY_SECOND_DECODING.sub(lambda match: quote(match[0]), subscription)


def _segment(name: str, kind: str) -> str:
    """Encode a name as one segment of a path. Raises ClusterError (FATAL) if no encoding keeps it."""
    if not name or name in _DOTS:
        problem = f"{kind} {name!r} cannot be addressed in the admin interface: its path would be that of another object"
        raise ClusterError(f"{problem}. Nothing was changed; use another name", Failure.FATAL)
    return quote(name, safe="")
