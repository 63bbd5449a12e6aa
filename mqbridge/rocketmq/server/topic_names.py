"""The names of topics that have a meaning for clients, and the names by which the listener presents itself."""

from mqbridge.listener.topics import FixedNames
from mqbridge.rocketmq.wire.headers.send import DEFAULT_TOPIC
from mqbridge.rocketmq.wire.names import FORBIDDEN_TOPICS, MAX_TOPIC_CHARS

CLUSTER_NAME = "DefaultCluster"
"""The name of the cluster that clients see: that of a real one which nobody has named, so that commands for it work here."""
RETRY_PREFIX = "%RETRY%"
"""Prefix of a group's retry topic, in which it gets messages again that it could not consume."""
DEAD_PREFIX = "%DLQ%"
"""Prefix of a group's dead-letter topic."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""The topic to which clients with message tracing send what they have done."""
TEMPLATE_TOPIC = DEFAULT_TOPIC
"""The topic whose route producers ask for if their own topic does not exist: the first message creates it."""
REPLY_TOPIC = f"{CLUSTER_NAME}_REPLY_TOPIC"
"""The topic of replies to request messages, which are passed on and not stored."""
SYSTEM_TOPICS = frozenset({TEMPLATE_TOPIC, REPLY_TOPIC, *FORBIDDEN_TOPICS})
"""Topics that are never stored."""


def retry_topic(group: str) -> str:
    """Return the name of a group's retry topic."""
    return RETRY_PREFIX + group


def dead_topic(group: str) -> str:
    """Return the name of a group's dead-letter topic."""
    return DEAD_PREFIX + group


def is_of_group(name: str) -> bool:
    """Return True for a retry topic, or a dead-letter topic."""
    return name.startswith((RETRY_PREFIX, DEAD_PREFIX))


STORED_RETRY_PREFIX = "%retry%"
"""Prefix of a retry topic in the cluster, instead of RETRY_PREFIX. A broker does not retry a message that is sent to a topic with
that prefix, if members of the group have locked queues: it puts the message into the dead-letter topic."""


def is_made_by_listener(name: str) -> bool:
    """Return True for a topic that the listener creates when it is needed, whether clients may create topics or not."""
    return is_of_group(name) or name == TRACE_TOPIC


def _in_cluster(name: str) -> str | None:
    if name.startswith(RETRY_PREFIX):
        return STORED_RETRY_PREFIX + name[len(RETRY_PREFIX) :]
    return name if is_made_by_listener(name) else None


def _for_clients(name: str) -> str | None:
    if name.startswith(STORED_RETRY_PREFIX):
        return RETRY_PREFIX + name[len(STORED_RETRY_PREFIX) :]
    return name if is_made_by_listener(name) else None


FIXED_NAMES = FixedNames(_in_cluster, _for_clients)
"""The names of these topics in the cluster."""


def is_valid(name: str) -> bool:
    """Return True for a name that a client may use for a topic of its own."""
    return name not in SYSTEM_TOPICS and 0 < len(name) <= MAX_TOPIC_CHARS
