"""Topic lists of a namespace: encodes the commands that request or watch one, and filters the names.

A request may contain the hash of an earlier response; the broker then sends no names if they have not changed since. Names are
full names, and each partition is listed by itself; a name that is no topic name is left out. A pattern is a regular expression
over `tenant/namespace/topic`, without the scheme and partition suffix, as brokers match it. A broker may ignore the pattern, so
the client applies it again.
"""

import logging
from collections.abc import Iterable, Iterator

from crc32c import crc32c

from mqbridge.pulsar.wire.frame import encode_command
from mqbridge.pulsar.wire.names import TopicName, parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.wire.bounded_pattern import BoundedPattern
from mqbridge.wire.limits import shorten

log = logging.getLogger(__name__)


def topics_hash(names: Iterable[str]) -> str:
    """Return the brokers' hash of a topic list: CRC32C of the sorted names, as hex of its little-endian bytes.

    The hash of an empty list is `00000000`.
    """
    joined = ",".join(sorted(names))
    return crc32c(joined.encode()).to_bytes(4, "little").hex() if joined else "00000000"


def parent_topics(names: Iterable[str], pattern: str | None = None) -> set[str]:
    """Return the full names of the topics to which the listed names belong; with a pattern only those that match it.

    The names of partitions are replaced by that of their topic.
    """
    regex = None if pattern is None else BoundedPattern(pattern)
    topics = {name.parent for name in parse_names(names)}
    return {str(topic) for topic in topics if regex is None or regex.fullmatch(topic.path)}


def parse_names(names: Iterable[str]) -> Iterator[TopicName]:
    """Yield the parsed names of a list, without those that are no topic names: one such name must not hide the others."""
    for name in names:
        try:
            yield parse_topic(name)
        except ValueError as error:
            log.info("a broker lists a topic whose name is invalid, which is ignored: %s", shorten(str(error), 300))


def topics_of_namespace(request_id: int, namespace: str, pattern: str | None = None, known_hash: str | None = None) -> bytes:
    """Encode GET_TOPICS_OF_NAMESPACE for persistent topics.

    `known_hash` is the hash of an earlier response; None: the broker sends the names in any case. Without a pattern, it
    sends those of all topics.
    """
    command = pb.CommandGetTopicsOfNamespace(
        request_id=request_id,
        namespace=namespace,
        topics_pattern=pattern,
        topics_hash=known_hash,
    )
    return encode_command(BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=command))


def watch_topic_list(request_id: int, watcher_id: int, namespace: str, pattern: str, known_hash: str | None) -> bytes:
    """Encode WATCH_TOPIC_LIST; the client chooses `watcher_id`. The broker pushes changes until the watcher or connection closes.

    The response contains all names, or none if they still have the hash `known_hash` (None: always all).
    """
    command = pb.CommandWatchTopicList(
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=pattern,
        topics_hash=known_hash,
    )
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST, watchTopicList=command))


def watch_topic_list_close(request_id: int, watcher_id: int) -> bytes:
    """Encode WATCH_TOPIC_LIST_CLOSE."""
    command = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_CLOSE, watchTopicListClose=command))
