"""Rules for names of topics and groups; brokers enforce them too, with less helpful errors."""

import re

from mqbridge.errors import ClusterError, Failure

MAX_TOPIC_CHARS = 127
MAX_GROUP_CHARS = 255
"""5.x brokers allow 120 for groups that they create automatically."""
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
FORBIDDEN = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""System topics that clients must not write."""


def check_topic(topic: str) -> str:
    """Return the topic if it may be written. Raises ClusterError (FATAL)."""
    if topic in FORBIDDEN:
        raise ClusterError(f"topic {topic} belongs to the system: choose another one", Failure.FATAL)
    return _check("topic", topic, MAX_TOPIC_CHARS)


def check_group(group: str) -> str:
    """Return the group if its name is valid. Raises ClusterError (FATAL)."""
    return _check("group", group, MAX_GROUP_CHARS)


def _check(kind: str, name: str, max_chars: int) -> str:
    if not _ALLOWED.fullmatch(name) or len(name) > max_chars:
        problem = f"{name[:300]!r} cannot be a {kind}: 1 to {max_chars} letters, digits and the characters % | _ - are allowed"
        raise ClusterError(problem, Failure.FATAL)
    return name
