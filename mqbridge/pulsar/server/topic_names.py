"""Names of topics in requests: a topic, or one partition of it."""

from dataclasses import dataclass
from typing import NamedTuple

from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.listener.topics import ListenedTopic, ListenedTopics
from mqbridge.pulsar.server.support import NON_PERSISTENT
from mqbridge.pulsar.wire.names import PERSISTENT, parse_topic

MAX_NAME_CHARS = 1000
"""Maximum length of the names of topics, subscriptions, consumers and producers."""
MAX_PARTITIONS = 1 << 31
"""The protocol has 31 bits for the index of a partition."""


class NamedTopic(NamedTuple):
    """A topic as a client names it: its full name, and the index of a partition, -1 without one."""

    name: str
    partition: int


@dataclass(frozen=True, slots=True)
class OpenPartition:
    """A partition that is opened: its topic, its index, and the one that clients see, -1 if the topic is not partitioned."""

    topic: ListenedTopic
    index: int
    shown_index: int


def parse_requested(text: str) -> NamedTopic:
    """Parse a name. Raises RequestRefused for an invalid one, and for topics that keep nothing."""
    if len(text) > MAX_NAME_CHARS:
        raise RequestRefused(f"the name of a topic has more than {MAX_NAME_CHARS} characters", RefusalReason.INVALID_NAME)
    try:
        name = parse_topic(text)
    except ValueError as error:
        raise RequestRefused(str(error), RefusalReason.INVALID_NAME) from error
    if name.partition_index >= MAX_PARTITIONS:
        raise RequestRefused(f"topic {name} names a partition that no topic can have", RefusalReason.INVALID_NAME)
    if name.domain != PERSISTENT:
        raise RequestRefused(NON_PERSISTENT, RefusalReason.NOT_ALLOWED)
    return NamedTopic(str(name.parent), name.partition_index)


async def find_partition(topics: ListenedTopics, text: str, *, create: bool) -> OpenPartition:
    """Return the partition that a client names, or the only one of a topic; with `create`, create a missing topic.

    Raises RequestRefused, ClusterError.
    """
    requested = parse_requested(text)
    if create and requested.partition < 0:
        topic = await topics.find_or_create(requested.name)
    else:
        found = await topics.find(requested.name)
        if found is None or requested.partition >= found.count:
            found = await topics.find(requested.name, fresh=True)
        if found is None:
            raise RequestRefused(f"topic {requested.name} does not exist", RefusalReason.TOPIC_MISSING)
        topic = found
    if requested.partition >= 0:
        if requested.partition not in topic.partitions:
            topic.partition(requested.partition)  # raises the error that fits
        return OpenPartition(topic, requested.partition, requested.partition)
    if topic.count != 1:
        raise RequestRefused(
            f"topic {requested.name} has {topic.count} partitions: a client has to name one of them", RefusalReason.NOT_ALLOWED
        )
    return OpenPartition(topic, next(iter(topic.partitions)), -1)
