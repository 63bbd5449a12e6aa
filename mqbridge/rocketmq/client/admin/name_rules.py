"""Rules for names of topics and groups. Brokers enforce them too, but their errors do not say which characters are allowed."""

import re

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.wire.names import FORBIDDEN_TOPICS, MAX_GROUP_CHARS, MAX_TOPIC_CHARS

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


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
