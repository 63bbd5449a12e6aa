"""Topics and topic watches of the scripted broker."""

import pytest

from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.pulsar.wire.topic_lists import topics_hash
from tests.pulsar.client.broker import Broker, success


class Catalog:
    """Answers requests about topics, partitions and watches; tests change the topics that exist."""

    def __init__(self, broker: Broker) -> None:
        self.counts: dict[str, int] = {}
        self.absent: set[str] = set()
        """Partitions that are counted, and are not there (yet)."""
        self.watches = True
        self.filtered = True
        self.broker = broker
        broker.on[BaseCommand.PARTITIONED_METADATA] = self._metadata
        broker.on[BaseCommand.GET_TOPICS_OF_NAMESPACE] = self._list
        broker.on[BaseCommand.WATCH_TOPIC_LIST] = self._watch
        broker.on[BaseCommand.WATCH_TOPIC_LIST_CLOSE] = success
        broker.on[BaseCommand.CONNECT] = self._connect
        broker.on[BaseCommand.SUBSCRIBE] = self._subscribe

    @property
    def names(self) -> list[str]:
        names = [
            name if not count else f"{name}-partition-{index}"
            for name, count in self.counts.items()
            for index in range(max(1, count))
        ]
        return [name for name in names if name not in self.absent]

    def _connect(self, link, _):
        flags = pb.FeatureFlags(supports_topic_watchers=self.watches)
        connected = pb.CommandConnected(server_version="x", protocol_version=21, max_message_size=1 << 20, feature_flags=flags)
        link.send(connected=connected)

    def _subscribe(self, link, frame):
        asked = frame.command.subscribe
        if asked.topic not in self.names and not asked.force_topic_creation:
            link.error(asked.request_id, pb.TopicNotFound)
            return
        if asked.topic not in self.names:
            self.counts[asked.topic] = 0
        success(link, frame)

    def _metadata(self, link, frame):
        asked = frame.command.partitionMetadata
        metadata = pb.CommandPartitionedTopicMetadataResponse(request_id=asked.request_id)
        if asked.topic in self.counts:
            metadata.response, metadata.partitions = metadata.Success, self.counts[asked.topic]
        else:
            metadata.response, metadata.error, metadata.message = metadata.Failed, pb.TopicNotFound, ""
        link.send(partitionMetadataResponse=metadata)

    def _list(self, link, frame):
        asked = frame.command.getTopicsOfNamespace
        told = topics_hash(self.names)
        same = asked.topics_hash == told
        response = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=asked.request_id, topics=[] if same else self.names, topics_hash=told, changed=not same
        )
        link.send(getTopicsOfNamespaceResponse=response)

    def _watch(self, link, frame):
        asked = frame.command.watchTopicList
        told = topics_hash(self.names)
        names = [] if asked.topics_hash == told else self.names
        response = pb.CommandWatchTopicListSuccess(
            request_id=asked.request_id, watcher_id=asked.watcher_id, topic=names, topics_hash=told
        )
        link.send(watchTopicListSuccess=response)

    def report(self, watcher_id: int, added: list[str], removed: list[str]) -> None:
        update = pb.CommandWatchTopicUpdate(
            watcher_id=watcher_id, new_topics=added, deleted_topics=removed, topics_hash=topics_hash(self.names)
        )
        self.broker.link.send(watchTopicUpdate=update)


@pytest.fixture
def catalog(broker: Broker) -> Catalog:
    return Catalog(broker)
