"""Parser of the error texts (remarks) with which brokers deny access.

Access control 2.0 (brokers from 5.3 on) and 1.0 (4.x) use different response codes and texts:

    2.0  code 16  check signature failed.
                  User:NAME is not found. | User:NAME is disabled. | username cannot be null.
                  User:NAME has no permission to access Topic:NAME from ADDRESS, no matched policies.
    1.0  code 1   org.apache.rocketmq.acl.common.AclException: TEXT, org.apache.rocketmq.acl.plain...
                  Check signature failed for accessKey=NAME | No acl config for NAME
                  No PlainAccessResource for NAME | No accessKey is configured
                  No default permission for topic:NAME | No default permission for group:NAME
                  Need admin permission for request code=17, but accessKey=NAME is not

Remarks are searched for fixed texts, in time proportional to their length; a regular expression may need the square of it.

Neither code is enough to recognize a denial: brokers also respond with 16 if a topic or the broker does not permit reading or
writing, and with 1 to most other errors.
"""

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
    WRONG_SECRET_KEY = auto()
    """The signature was made with another secret key."""
    MISSING_PERMISSION = auto()
    """The user is known, but has no permission for the resource."""


class ResourceType(Enum):
    """The type of resource that a permission is for."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class AccessDenial(NamedTuple):
    """A denied request.

    `version` is the version of the broker's access control, 1 or 2. `resource` is the name of the topic, group or cluster for
    which a permission is missing. If the remark does not name it, or the reason is not MISSING_PERMISSION, `resource` is empty
    and `resource_type` is CLUSTER.
    """

    reason: DenialReason
    version: int
    resource_type: ResourceType = ResourceType.CLUSTER
    resource: str = ""
    source: str = ""
    """The client's address as the broker sees it, because policies may be limited to addresses; empty for version 1."""

    @property
    def of_credentials(self) -> bool:
        """True if the credentials are missing, wrong or disabled; False if their user lacks a permission."""
        return self.reason is not DenialReason.MISSING_PERMISSION


DENIAL_STATUSES = frozenset({Status.SYSTEM_ERROR, Status.NO_PERMISSION})
"""Response codes that may mean a denial; the remark decides."""

_PERMISSION_V2 = "has no permission to access "
_PERMISSION_V1 = "No default permission for "
_REASONS_V1 = (
    ("Check signature failed", DenialReason.WRONG_SECRET_KEY),
    ("No acl config for", DenialReason.UNKNOWN_USER),
    ("No PlainAccessResource for", DenialReason.UNKNOWN_USER),
    ("No accessKey is configured", DenialReason.NO_CREDENTIALS),
    ("Need admin permission", DenialReason.MISSING_PERMISSION),
)


def parse_denial(status: int, remark: str | None) -> AccessDenial | None:
    """Parse the remark of a response with this response code; return None if it does not deny access."""
    if not remark:
        return None
    if status == Status.NO_PERMISSION:
        return _parse_v2(remark)
    if status == Status.SYSTEM_ERROR and ACL_EXCEPTION in remark:
        return _parse_v1(remark)
    return None


def _parse_v2(remark: str) -> AccessDenial | None:
    lower = remark.lower()
    user_at = remark.find("User:")
    user_problem = remark[user_at:] if user_at >= 0 else ""
    if (permission := _parse_permission_v2(remark)) is not None:
        return permission
    if "check signature failed" in lower or "authentication failed" in lower:
        return AccessDenial(DenialReason.WRONG_SECRET_KEY, 2)
    if " not found" in user_problem:
        return AccessDenial(DenialReason.UNKNOWN_USER, 2)
    if " is disabled" in user_problem:
        return AccessDenial(DenialReason.DISABLED, 2)
    return AccessDenial(DenialReason.NO_CREDENTIALS, 2) if "username cannot be null" in remark else None


def _parse_permission_v2(remark: str) -> AccessDenial | None:
    """Parse `… has no permission to access TYPE:NAME from ADDRESS, …`; None for another text. A name may contain " from "."""
    _, found, missing = remark.partition(_PERMISSION_V2)
    type_name, _, named = missing.partition(":")
    resource, is_complete, source = named.rpartition(" from ")
    if not found or not is_complete or type_name not in {"Topic", "Group", "Cluster"}:
        return None
    address = source.split(",", 1)[0].split(" ", 1)[0]
    return AccessDenial(DenialReason.MISSING_PERMISSION, 2, ResourceType(type_name.lower()), resource, address)


def _parse_v1(remark: str) -> AccessDenial | None:
    _, _, missing = remark.partition(_PERMISSION_V1)
    type_name, separator, named = missing.partition(":")
    if separator and type_name in {"topic", "group"}:
        return AccessDenial(DenialReason.MISSING_PERMISSION, 1, ResourceType(type_name), named.split(",", 1)[0])
    return next((AccessDenial(reason, 1) for text, reason in _REASONS_V1 if text in remark), None)
