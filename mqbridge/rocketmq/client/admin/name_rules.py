"""Rules for names of topics and groups. Brokers enforce them too, but their errors do not say which characters are allowed."""

import re

from mqbridge.errors import ClusterError, Failure

MAX_TOPIC_CHARS = 127
"""Maximum length of a topic's name that brokers accept."""
MAX_GROUP_CHARS = 255
"""Maximum length of a group's name that brokers accept from an administrator.

5.x brokers create a group automatically only if its name has at most 120 characters. This is not checked here, because the group
may exist already.
"""
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
FORBIDDEN_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""System topics to which clients must not send."""


def check_topic(topic: str) -> str:
    """Return the topic if clients may create a topic of this name and send to it. Raises ClusterError (FATAL) if not."""
    if topic in FORBIDDEN_TOPICS:
        raise ClusterError(f"topic {topic} is a system topic, to which clients must not send: choose another one", Failure.FATAL)
    return _check_name("topic", topic, MAX_TOPIC_CHARS)


def check_group(group: str) -> str:
    """Return the group if its name is valid. Raises ClusterError (FATAL) if not."""
    return _check_name("group", group, MAX_GROUP_CHARS)


def _check_name(noun: str, name: str, max_chars: int) -> str:
    if not _ALLOWED.fullmatch(name) or len(name) > max_chars:
        problem = f"{name[:300]!r} cannot be a {noun}: 1 to {max_chars} letters, digits and the characters % | _ - are allowed"
        raise ClusterError(problem, Failure.FATAL)
    return name
