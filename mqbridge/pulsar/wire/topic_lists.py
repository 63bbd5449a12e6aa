"""Which topics a namespace has: asked once, asked again by the hash of the last answer, or watched.

Names are full ones and each partition is listed by itself. A pattern is a regular expression over `tenant/namespace/topic` of
the whole topic, without scheme and partition, as brokers match it; they may apply it or not, so whoever asks does it again.
"""

import re
from collections.abc import Iterable

from crc32c import crc32c

from mqbridge.pulsar.wire.frame import encode_command
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand


def topics_hash(names: Iterable[str]) -> str:
    """What brokers call the hash of a list: CRC32C of the sorted names, its bytes in little-endian order."""
    joined = ",".join(sorted(names))
    return crc32c(joined.encode()).to_bytes(4, "little").hex() if joined else "00000000"


def whole_topics(names: Iterable[str], pattern: str | None = None) -> set[str]:
    """The topics of a list of names: without partition suffixes, and only those that match."""
    wanted = None if pattern is None else re.compile(pattern)
    topics = {parse_topic(name).parent for name in names}
    return {str(topic) for topic in topics if wanted is None or wanted.fullmatch(topic.path)}


def topics_of_namespace(request_id: int, namespace: str, pattern: str | None = None, known_hash: str | None = None) -> bytes:
    """GET_TOPICS_OF_NAMESPACE, persistent ones. With the hash of an earlier answer only a change is told."""
    command = pb.CommandGetTopicsOfNamespace(
        request_id=request_id,
        namespace=namespace,
        topics_pattern=pattern,
        topics_hash=known_hash,
    )
    return encode_command(BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=command))


def watch_topic_list(request_id: int, watcher_id: int, namespace: str, pattern: str, known_hash: str | None) -> bytes:
    """WATCH_TOPIC_LIST; the answer has all names, updates come until the connection ends."""
    command = pb.CommandWatchTopicList(
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=pattern,
        topics_hash=known_hash,
    )
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST, watchTopicList=command))


def watch_topic_list_close(request_id: int, watcher_id: int) -> bytes:
    """WATCH_TOPIC_LIST_CLOSE."""
    command = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_CLOSE, watchTopicListClose=command))
