"""A standalone Pulsar broker. Source topics have the default retention; targets keep everything."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterator

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ClusterError
from mqbridge.message import Message, Position
from mqbridge.net.backoff import Backoff
from mqbridge.pulsar.adapter.cluster import Pulsar as PulsarCluster
from mqbridge.pulsar.client.producer.entry_producer import EntryProducer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.chaos.flow import SendInChunks
from tests.chaos.judge import Stored
from tests.chaos.layout import Layout
from tests.chaos.systems.system import REFRESH, System, address_of, new_group, writer_in
from tests.kit import java
from tests.kit.pulsar import DEFAULT_NAMESPACE, Pulsar

SOURCES = "public/sources"
"""Namespace of Pulsar's source topics."""
SHORT_LEDGERS: dict[str, object] = {
    "managedLedgerMaxEntriesPerLedger": 300,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "retentionCheckIntervalInSeconds": 5,
    "backlogQuotaCheckIntervalInSeconds": 1,
}
"""Settings with which ledgers are closed during a run, and deleted soon when every group has acknowledged them. An exceeded quota
is noticed soon, too."""
CHUNK_BYTES = 10_000
KEEPER = "chaos_keeper"
"""Subscription of each Pulsar target that acknowledges nothing, so that a quota can be exceeded."""
FULL_QUOTA = {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}


class PulsarSystem(System):
    """A standalone Pulsar broker."""

    name = kind = "pulsar"

    def __init__(self) -> None:
        server = self._pulsar = self.server = Pulsar(SHORT_LEDGERS)
        self.settings = {"service_url": server.service_url, "admin_url": server.admin_url, "refresh": REFRESH}
        self.brokers, self.broker = [address_of(server.service_url)], server.server
        self.others = [address_of(server.admin_url)]

    def start(self) -> None:
        """Also retain messages of targets that no subscription needs, because the judge reads them at the end."""
        super().start()
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self._pulsar.admin("POST", f"namespaces/{DEFAULT_NAMESPACE}/retention", forever)
        self._pulsar.create_namespace(*SOURCES.split("/"))
        self._pulsar.admin("POST", f"namespaces/{SOURCES}/autoTopicCreation", {"allowAutoTopicCreation": False})

    async def create(self, cluster: Cluster, topic: str, partitions: int, layout: Layout) -> None:
        await cluster.create(topic, partitions)
        if not topic.startswith(f"persistent://{SOURCES}/"):
            await asyncio.to_thread(self.register, topic, KEEPER)

    def send_in_chunks(self, cluster: Cluster) -> SendInChunks | None:
        assert isinstance(cluster, PulsarCluster)
        client, settings = cluster._client, ProducerSettings(chunking=True, chunk_bytes=CHUNK_BYTES)
        producers: dict[str, EntryProducer] = {}

        async def send(topic: str, partition: int, message: Message) -> None:
            name, backoff = f"{topic}-partition-{partition}", Backoff()
            while True:
                if name not in producers:
                    producers[name] = client.producer(name, settings)
                producer = producers[name]
                try:
                    await producer.send(MessageMetadata(partition_key=str(message.key)), message.payload or b"")
                except ClusterError:  # such as after the deletion of the topic
                    await producers.pop(name).close()
                    await asyncio.sleep(backoff.delay())
                else:
                    return

        return send

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(self._pulsar.admin, "DELETE", f"{_path(topic)}/partitions?force=true")

    async def truncate(self, topic: str) -> None:
        await asyncio.to_thread(self._pulsar.admin, "DELETE", f"{_path(topic)}/truncate")

    @contextlib.asynccontextmanager
    async def writes_refused(self, topic: str, *, partly: bool) -> AsyncIterator[None]:
        """Give the namespace of all targets a quota that they exceed, so that the broker refuses producers."""
        path = f"namespaces/{DEFAULT_NAMESPACE}/backlogQuota"
        await asyncio.to_thread(self._pulsar.admin, "POST", path, FULL_QUOTA)
        try:
            yield
        finally:
            await asyncio.to_thread(self._pulsar.admin, "DELETE", path)

    def source_topic(self, name: str) -> str:
        """Return a topic in a namespace with the default retention: what every group has acknowledged is deleted."""
        return f"persistent://{SOURCES}/{name}"

    def register(self, topic: str, group: str) -> None:
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        self._pulsar.admin("PUT", f"{_path(topic)}/subscription/{group}", earliest)

    def earlier(self, committed: Position, messages: int) -> Position:
        ledger, entry, *_ = committed  # an entry of the gateway, or of our producer, holds several messages
        return (ledger, max(0, entry - max(1, messages // 20)), 0)

    async def move_running(self, topic: str, group: str, messages: int) -> bool:
        moved = False
        async with self.open() as cluster:
            marks = await cluster.committed(topic, group)
        for name, committed in marks.items():
            if committed[0] < 0:
                continue  # the group has acknowledged nothing in this partition yet
            ledger, entry, *_ = self.earlier(committed, messages)
            path = f"{_path(topic)}-partition-{name}"
            stats = await asyncio.to_thread(self._pulsar.admin, "GET", f"{path}/internalStats")
            if ledger not in [each["ledgerId"] for each in stats["ledgers"]]:
                continue  # the group has acknowledged the whole ledger, so it is deleted
            moved |= entry < committed[1]
            message_id = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
            await asyncio.to_thread(self._pulsar.admin, "POST", f"{path}/subscription/{group}/resetcursor", message_id)
        return moved

    def unload(self, topic: str) -> None:
        self._pulsar.admin("PUT", f"{_path(topic)}/unload")

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        url = self._pulsar.service_url
        for line in java.run("PulsarConsume", url=url, topic=topic, subscription=new_group(), idle=idle_s)[:-1]:
            origin = line["properties"].get("mqbridge.origin", "")
            yield Stored(line["id"]["partition"], writer_in(f"mqbridge.origin={origin}"), base64.b64decode(line["body"]))


def _path(topic: str) -> str:
    """Return the path of a topic, given by its name or its full name, in Pulsar's admin API."""
    return topic.replace("://", "/") if "://" in topic else f"persistent/{DEFAULT_NAMESPACE}/{topic}"
