"""What topics and groups may be called; brokers refuse other names, with less to say about them."""

import re

from mqbridge.errors import ClusterError, Failure

MAX_TOPIC_CHARS = 127
MAX_GROUP_CHARS = 255
"""5.x brokers take 120 for a group of clients that they create themselves."""
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
"""Topics of the system that nobody else may write."""


def check_topic(topic: str) -> str:
    """The topic if it may be written. Raises ClusterError (FATAL)."""
    if topic in FORBIDDEN:
        raise ClusterError(f"topic {topic} belongs to the system: choose another one", Failure.FATAL)
    return _check("topic", topic, MAX_TOPIC_CHARS)


def check_group(group: str) -> str:
    """The group if it can be one. Raises ClusterError (FATAL)."""
    return _check("group", group, MAX_GROUP_CHARS)


def _check(kind: str, name: str, most: int) -> str:
    if not _ALLOWED.fullmatch(name) or len(name) > most:
        problem = f"{name[:300]!r} cannot be a {kind}: 1 to {most} letters, digits and the characters % | _ - are allowed"
        raise ClusterError(problem, Failure.FATAL)
    return name
