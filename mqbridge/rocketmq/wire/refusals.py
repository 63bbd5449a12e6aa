"""How brokers refuse credentials and rights: access control 2.0 (from 5.3 on) and 1.0 (4.x) have wordings of their own.

    2.0  code 16  check signature failed.
                  User:NAME is not found. | User:NAME is disabled. | username cannot be null.
                  User:NAME has no permission to access Topic:NAME from ADDRESS, no matched policies.
    1.0  code 1   org.apache.rocketmq.acl.common.AclException: TEXT, org.apache.rocketmq.acl.plain...
                  Check signature failed for accessKey=NAME | No acl config for NAME | No accessKey is configured
                  No default permission for topic:NAME | No default permission for group:NAME
                  Need admin permission for request code=17, but accessKey=NAME is not

Code 16 also says that a topic or a broker is closed for reading or writing, code 1 nearly anything.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

from mqbridge.rocketmq.wire.codes import ACL_EXCEPTION, Status


class Lack(Enum):
    """What a request had not."""

    CREDENTIALS = auto()
    """It was not signed."""
    USER = auto()
    """Nobody has this access key."""
    ENABLED = auto()
    """Its user is locked out."""
    SIGNATURE = auto()
    """The secret key is another one."""
    RIGHT = auto()
    """The user may not do this."""


class Kind(Enum):
    """What rights are about."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Refusal(NamedTuple):
    """`version` is that of the access control, 1 or 2. `kind` and `name`: what a missing right is about, where told."""

    lack: Lack
    version: int
    kind: Kind = Kind.CLUSTER
    name: str = ""
    source: str = ""
    """The address that we have for the broker, which policies may name."""

    @property
    def of_credentials(self) -> bool:
        """Whether other credentials help."""
        return self.lack is not Lack.RIGHT


STATUSES = frozenset({Status.SYSTEM_ERROR, Status.NO_PERMISSION})
"""Answers that may be refusals."""

_RIGHT_2 = re.compile(r"has no permission to access (Topic|Group|Cluster):(.*) from ([^ ,]*)", re.DOTALL)
_LACKS_2 = (
    (re.compile(r"check signature failed|authentication failed", re.IGNORECASE), Lack.SIGNATURE),
    (re.compile(r"User:.* (is )?not found", re.DOTALL), Lack.USER),
    (re.compile(r"User:.* is disabled", re.DOTALL), Lack.ENABLED),
    (re.compile(r"username cannot be null"), Lack.CREDENTIALS),
)
_RIGHT_1 = re.compile(r"No default permission for (topic|group):([^,]*)")
_LACKS_1 = (
    ("Check signature failed", Lack.SIGNATURE),
    ("No acl config for", Lack.USER),
    ("No PlainAccessResource for", Lack.USER),
    ("No accessKey is configured", Lack.CREDENTIALS),
    ("Need admin permission", Lack.RIGHT),
)


def read_refusal(status: int, remark: str | None) -> Refusal | None:
    """What the answer refuses; None when it says something else."""
    if not remark:
        return None
    if status == Status.NO_PERMISSION:
        return _read_2(remark)
    if status == Status.SYSTEM_ERROR and ACL_EXCEPTION in remark:
        return _read_1(remark)
    return None


def _read_2(remark: str) -> Refusal | None:
    if (found := _RIGHT_2.search(remark)) is not None:
        return Refusal(Lack.RIGHT, 2, Kind(found[1].lower()), found[2], found[3])
    return next((Refusal(lack, 2) for pattern, lack in _LACKS_2 if pattern.search(remark)), None)


def _read_1(remark: str) -> Refusal | None:
    if (found := _RIGHT_1.search(remark)) is not None:
        return Refusal(Lack.RIGHT, 1, Kind(found[1]), found[2])
    return next((Refusal(lack, 1) for text, lack in _LACKS_1 if text in remark), None)
