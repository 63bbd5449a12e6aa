"""Parser of the remarks with which brokers deny access: access control 2.0 (from 5.3 on) and 1.0 (4.x) word them differently.

    2.0  code 16  check signature failed.
                  User:NAME is not found. | User:NAME is disabled. | username cannot be null.
                  User:NAME has no permission to access Topic:NAME from ADDRESS, no matched policies.
    1.0  code 1   org.apache.rocketmq.acl.common.AclException: TEXT, org.apache.rocketmq.acl.plain...
                  Check signature failed for accessKey=NAME | No acl config for NAME | No accessKey is configured
                  No default permission for topic:NAME | No default permission for group:NAME
                  Need admin permission for request code=17, but accessKey=NAME is not

Code 16 also means that a topic or a broker does not permit reading or writing; code 1 is also the code of most other errors.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

from mqbridge.rocketmq.wire.codes import ACL_EXCEPTION, Status


class DenialReason(Enum):
    """Why access was denied."""

    NO_CREDENTIALS = auto()
    """The request was not signed."""
    UNKNOWN_USER = auto()
    """No user has this access key."""
    DISABLED = auto()
    """The user is disabled."""
    SIGNATURE = auto()
    """The signature was made with another secret key."""
    PERMISSION = auto()
    """The user lacks the permission."""


class ResourceType(Enum):
    """The type of resource that a permission is for."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class AccessDenial(NamedTuple):
    """A denied request. `version` is that of the access control, 1 or 2; a missing permission is for `resource`."""

    reason: DenialReason
    version: int
    resource_type: ResourceType = ResourceType.CLUSTER
    resource: str = ""
    source: str = ""
    """Our address as the broker sees it; policies may be limited to addresses."""

    @property
    def of_credentials(self) -> bool:
        """True if the credentials are wrong; False if their user lacks a permission."""
        return self.reason is not DenialReason.PERMISSION


STATUSES = frozenset({Status.SYSTEM_ERROR, Status.NO_PERMISSION})
"""Response codes that may be denials."""

_PERMISSION_V2 = re.compile(r"has no permission to access (Topic|Group|Cluster):(.*) from ([^ ,]*)", re.DOTALL)
_REASONS_V2 = (
    (re.compile(r"check signature failed|authentication failed", re.IGNORECASE), DenialReason.SIGNATURE),
    (re.compile(r"User:.* (is )?not found", re.DOTALL), DenialReason.UNKNOWN_USER),
    (re.compile(r"User:.* is disabled", re.DOTALL), DenialReason.DISABLED),
    (re.compile(r"username cannot be null"), DenialReason.NO_CREDENTIALS),
)
_PERMISSION_V1 = re.compile(r"No default permission for (topic|group):([^,]*)")
_REASONS_V1 = (
    ("Check signature failed", DenialReason.SIGNATURE),
    ("No acl config for", DenialReason.UNKNOWN_USER),
    ("No PlainAccessResource for", DenialReason.UNKNOWN_USER),
    ("No accessKey is configured", DenialReason.NO_CREDENTIALS),
    ("Need admin permission", DenialReason.PERMISSION),
)


def parse_denial(status: int, remark: str | None) -> AccessDenial | None:
    """Parse the remark of a response; None if it is not about denied access."""
    if not remark:
        return None
    if status == Status.NO_PERMISSION:
        return _parse_v2(remark)
    if status == Status.SYSTEM_ERROR and ACL_EXCEPTION in remark:
        return _parse_v1(remark)
    return None


def _parse_v2(remark: str) -> AccessDenial | None:
    if (found := _PERMISSION_V2.search(remark)) is not None:
        return AccessDenial(DenialReason.PERMISSION, 2, ResourceType(found[1].lower()), found[2], found[3])
    return next((AccessDenial(reason, 2) for pattern, reason in _REASONS_V2 if pattern.search(remark)), None)


def _parse_v1(remark: str) -> AccessDenial | None:
    if (found := _PERMISSION_V1.search(remark)) is not None:
        return AccessDenial(DenialReason.PERMISSION, 1, ResourceType(found[1]), found[2])
    return next((AccessDenial(reason, 1) for text, reason in _REASONS_V1 if text in remark), None)
