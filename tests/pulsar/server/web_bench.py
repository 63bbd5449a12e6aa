"""The web side of a listener over an embedded log, with a scripted server of the binary protocol."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import find_format
from mqbridge.errors import LocalProtocolError
from mqbridge.groups.store import GroupStore
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.definitions import Definitions
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.groups import GroupNames, Groups, Partitions
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.listener.limits import InFlightBytes, UnacknowledgedBytes
from mqbridge.listener.notes import Notes
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.parking import Parking
from mqbridge.listener.publishers import Publishers
from mqbridge.listener.server import Services
from mqbridge.listener.topics import ListenedTopics, TopicTemplate
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share, Unit
from mqbridge.pulsar.server.web.app import make_web_app
from mqbridge.pulsar.server.web.served import ProducerView, SubscriptionView
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema

FORMAT = "pulsar.entry"
ADVERTISED = "broker.example:6650"
BASE = "/admin/v2/persistent/public/default"


class ScriptedSchemas:
    """Schemas in memory; versions count from 0."""

    def __init__(self) -> None:
        self.by_topic: dict[str, list[RegisteredSchema]] = defaultdict(list)

    async def latest(self, topic: str) -> RegisteredSchema | None:
        found = self.by_topic.get(topic)
        return found[-1] if found else None

    async def version(self, topic: str, version: bytes) -> RegisteredSchema | None:
        number, found = int.from_bytes(version, "big"), self.by_topic.get(topic, [])
        return found[number] if number < len(found) else None

    async def register(self, topic: str, schema: Schema) -> bytes:
        version = len(self.by_topic[topic]).to_bytes(8, "big")
        self.by_topic[topic].append(RegisteredSchema(schema, version, 1))
        return version

    async def delete(self, topic: str) -> None:
        self.by_topic.pop(topic, None)


class ScriptedBroker:
    """Clients as a test describes them; what the web side closes is recorded, and gone."""

    def __init__(self) -> None:
        self.schemas = ScriptedSchemas()
        self.producing: dict[tuple[str, int], list[ProducerView]] = {}
        self.consuming: dict[tuple[str, int], dict[str, SubscriptionView]] = {}
        self.disconnected: list[tuple[str, int, str]] = []
        self.closed: list[str] = []

    def producers(self, backing: str, partition: int) -> Sequence[ProducerView]:
        return self.producing.get((backing, partition), [])

    def subscriptions(self, backing: str, partition: int) -> Mapping[str, SubscriptionView]:
        return self.consuming.get((backing, partition), {})

    async def disconnect(self, backing: str, partition: int, subscription: str) -> None:
        self.disconnected.append((backing, partition, subscription))
        self.consuming.get((backing, partition), {}).pop(subscription, None)

    async def close_topic(self, backing: str) -> None:
        self.closed.append(backing)
        for clients in (self.producing, self.consuming):
            for key in [key for key in clients if key[0] == backing]:
                del clients[key]


class WebBench:
    """A log, the services of a listener over it, and a client of its web side."""

    def __init__(self, path: Path, mode: str, changes: Mapping[str, Any]) -> None:
        self.path, self.mode, self.changes = path, mode, dict(changes)
        self.broker = ScriptedBroker()

    async def start(self) -> None:
        self.cluster = LogCluster("log", LogSettings(path=self.path / "log.db", poll="10ms", lease="2s"))
        await self.cluster.connect()
        self.store = GroupStore(self.path / "state.db")
        partitions = Partitions(self.cluster, "app", FORMAT, FeedLimits(UnacknowledgedBytes(1 << 20), 10_000))
        template = TopicTemplate(self.changes.pop("template", "persistent://public/default/{topic}"))
        create_partitions = self.changes.pop("create_partitions", 2)
        notes = Notes(self.store, "app", "log")
        self.topics = ListenedTopics(self.cluster, template, create_partitions=create_partitions, notes=notes)
        self.groups: Groups
        if self.mode == "own":
            self.groups = OwnGroups(partitions, self.store, "app", "log")
        else:
            names = GroupNames("{group}", self.cluster.capabilities.group_name)
            self.groups = BackingGroups(self.cluster, partitions, names, self.store, "test")
        self.publishers = Publishers(self.cluster, InFlightBytes(1 << 20), _no_dead_letters, in_order=True)
        settings: dict[str, Any] = {
            "name": "app",
            "cluster": "log",
            "topics": self.topics,
            "publishers": self.publishers,
            "groups": self.groups,
            "partitions": partitions,
            "in_flight": InFlightBytes(1 << 20),
            "numbering": self.cluster.numbering,
            "definitions": Definitions(self.cluster),
            "parking": Parking(
                self.cluster,
                "mqbridge-app",
                find_format(FORMAT),
                self.groups,
                partitions,
                Definitions(self.cluster, topic="mqbridge-app-moves"),
                _no_dead_letters,
                "test",
                InFlightBytes(1 << 20),
            ),
            "notes": notes,
            "open_dead_letters": _no_dead_letters,
            "max_message_bytes": lambda: None,
            "may_manage": True,
            "deduplicates": False,
            "memory": UnacknowledgedBytes(1 << 20),
            "delays": lambda: False,
            "internal_topic": lambda end: InternalTopic(self.cluster, f"mqbridge-app-{end}", "test", InFlightBytes(1 << 20)),
            "advertise": None,
            "port": lambda: 6650,
        }
        app = make_web_app(Services(**(settings | self.changes)), self.broker, lambda _: ADVERTISED)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://web.example:8080")

    async def stop(self) -> None:
        await self.client.aclose()
        await self.publishers.close_all()
        await self.groups.close()
        await self.store.close()
        await self.cluster.close()

    async def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """Send a request to the admin interface, check the status, and return the parsed response."""
        full = path if path.startswith("/") else f"{BASE}/{path}"
        response = await self.client.request(method, full, json=body)
        assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    async def reason(self, method: str, path: str, body: Any = None, *, status: int) -> str:
        """Send a request that is refused, and return the reason."""
        found: str = (await self.call(method, path, body, status=status))["reason"]
        return found

    async def send(self, topic: str, *contents: Message | Unit, partition: int = 0) -> None:
        """Store messages and entries, each by itself."""
        outbound = await self.cluster.outbound(OutboundSpec(topic, stamp_origin=False, keep_units=True))
        unit_format = find_format(FORMAT)
        assert unit_format is not None
        try:
            for content in contents:
                batch = batch_of_units(unit_format, [content]) if isinstance(content, Unit) else Batch.of([content])
                assert not (await outbound.send(partition, Share(batch))).failures
        finally:
            await outbound.close()

    async def committed(self, topic: str, group: str) -> dict[int, int]:
        found = await self.topics.find(f"persistent://public/default/{topic}", fresh=True)
        assert found is not None
        return {index: position[0] for index, position in (await self.groups.committed(found, group)).items()}


async def _no_dead_letters() -> Any:
    raise LocalProtocolError("no dead letters in this test")


def batch_entry(*payloads: bytes) -> Unit:
    """Return a batch of an SDK."""
    metadata = MessageMetadata(producer_name="sdk", sequence_id=7, publish_time=1000, num_messages_in_batch=len(payloads))
    payload = join_batch((SingleMessageMetadata(sequence_id=index), each) for index, each in enumerate(payloads))
    return Unit(stored_entry(metadata, payload), len(payloads), 1)


@asynccontextmanager
async def web_bench(path: Path, mode: str = "own", **changes: Any) -> AsyncIterator[WebBench]:
    """Start a bench; `changes` are fields of Services, `template` and `create_partitions`."""
    bench = WebBench(path, mode, changes)
    await bench.start()
    try:
        yield bench
    finally:
        await bench.stop()
