"""A listener for TubeMQ clients over the embedded log, and a client that makes single requests."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import batch_of_units
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.listener.topics import ListenedTopic
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Unit
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.mapping.sdk_units import SentMessageFormat
from mqbridge.tubemq.server.connection import RESPONSES
from mqbridge.tubemq.server.server import TubeMQServer
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.payload import join_payload, split_payload
from mqbridge.tubemq.wire.pb import broker_pb2, master_pb2
from mqbridge.tubemq.wire.string_formats import PartitionRef, format_condition, format_subscription, parse_subscription
from tests.patience import PATIENCE_S

GROUP, TOPIC = "g", "demo"
DEAD_LETTERS = "mqbridge-dead-app"
FIRST, MAX, MAX_ALWAYS = 0, 1, 2
M = TypeVar("M", bound=ProtobufMessage)


def listener_settings(**changes: Any) -> ListenerSettings:
    """Return the settings of a listener for tests."""
    values: dict[str, Any] = {
        "name": "app", "system": "tubemq", "host": "127.0.0.1", "port": 0, "web": None, "advertise": None, "cluster": "store",
        "topics": "{topic}", "owns_groups": True, "group": "{group}", "parking": "mqbridge-app",
        "create_partitions": 1, "manage": True, "deduplicate": False, "dead_letter_cluster": "store",
        "dead_letter_topic": DEAD_LETTERS, "connections": 1000, "in_flight_bytes": 64 << 20,
        "unacknowledged_bytes": 64 << 20, "unacknowledged_span": 10_000,
    }  # fmt: skip
    return ListenerSettings(**(values | changes))


class TubeMQServing:
    """A running listener, and its clients."""

    def __init__(self, listener: Listener, cluster: Cluster) -> None:
        self.listener, self.cluster = listener, cluster
        assert isinstance(listener.server, TubeMQServer)
        self.server = listener.server
        self.broker = self.server.broker
        self.clients: list[ServedClient] = []

    async def connect(self, client_id: str = "c") -> "ServedClient":
        """Open a connection."""
        client = ServedClient(self.listener.port.port, client_id)
        self.clients.append(client)
        await client.connection.connect()
        return client

    async def create(self, name: str = TOPIC, partitions: int = 1) -> ListenedTopic:
        """Create a topic, or grow it."""
        await self.listener.topics.create(name, partitions, is_partitioned=True)
        topic = await self.broker.find_topic(name)
        assert topic is not None
        return topic

    async def append(self, *units: Unit | Message, topic: str = TOPIC, partition: int = 0) -> None:
        """Store units, or messages that no client of this protocol has sent, past the server."""
        listened = await self.broker.find_topic(topic)
        assert listened is not None
        publisher = await self.listener.publishers.open(listened, partition)
        stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        messages = [each for each in units if isinstance(each, Message)]
        batch = Batch.of(messages) if messages else batch_of_units(SentMessageFormat(), [*units])  # type: ignore[list-item]
        publisher.publish(self.listener.publishers.outbound_index(publisher, partition), batch, stored.set_result)
        assert (await stored).problem is None
        await self.listener.publishers.close(publisher)

    async def stored(self, topic: str = TOPIC) -> list[Message]:
        """Return the messages of a topic of the cluster; none if it does not exist."""
        described = await self.cluster.describe(topic)
        found: list[Message] = []
        for partition in () if described is None else described.partitions:
            bounds = (await self.cluster.bounds(topic, partition))[partition]
            reader = await self.cluster.reader(topic, partition, bounds.first, bounds.next)
            while (batch := await reader.receive()) is not None:
                found += batch.messages
            await reader.close()
        return found


@asynccontextmanager
async def log_cluster(folder: Path) -> AsyncIterator[LogCluster]:
    """Open the embedded log in this folder."""
    cluster = LogCluster("store", LogSettings(path=str(folder / "log.db"), max_message_bytes="8MiB"))
    await cluster.connect()
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def gateway(cluster: Cluster, folder: Path, name: str = "me", **changes: Any) -> AsyncIterator[TubeMQServing]:
    """Start a gateway over a cluster; it has a state file of its own."""
    store = GroupStore(folder / f"groups-{name}.db")
    changes = {"cluster": cluster.name, "dead_letter_cluster": cluster.name} | changes
    listener = Listener(listener_settings(**changes), load_servers()["tubemq"], cluster, cluster, store, name)
    listener.bind()
    await listener.start()
    served = TubeMQServing(listener, cluster)
    try:
        yield served
    finally:
        for client in served.clients:
            await client.connection.close()
        await listener.close(asyncio.get_running_loop().time() + 5)
        await store.close()


@asynccontextmanager
async def serving(*, folder: Path | None = None, **changes: Any) -> AsyncIterator[TubeMQServing]:
    """Serve the embedded log in this folder, or in a temporary one."""
    async with AsyncExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="served")))
        cluster = await stack.enter_async_context(log_cluster(folder))
        yield await stack.enter_async_context(gateway(cluster, folder, **changes))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


class ServedClient:
    """A client's connection; each method makes one request, and returns the response."""

    def __init__(self, port: int, client_id: str) -> None:
        self.client_id = client_id
        self.event = master_pb2.EventProto()
        """The last event of `assigned`."""
        self.connection = ServerConnection("127.0.0.1", port)

    async def ask(self, method: int, request: ProtobufMessage) -> Any:
        """Make a request."""
        service = rpc.WRITE if method == rpc.SEND else rpc.READ if method >= rpc.PARTITION_REGISTER else rpc.MASTER
        return await self.connection.call(service, method, request, RESPONSES[method])

    # --- producers ------------------------------------------------------------------------------------------------------

    async def register_producer(self, **fields: Any) -> master_pb2.RegisterResponseM2P:
        values = {"brokerCheckSum": -1, "hostName": "127.0.0.1"} | fields
        return await self.ask(rpc.PRODUCER_REGISTER, master_pb2.RegisterRequestP2M(clientId=self.client_id, **values))

    async def publish(self, *topics: str, **fields: Any) -> master_pb2.HeartResponseM2P:
        """Send the heartbeat of a producer."""
        values = {"brokerCheckSum": -1, "hostName": "127.0.0.1"} | fields
        request = master_pb2.HeartRequestP2M(clientId=self.client_id, topicList=topics, **values)
        return await self.ask(rpc.PRODUCER_HEARTBEAT, request)

    async def send(
        self, body: bytes, topic: str = TOPIC, partition: int = 0, attributes: bytes | None = None, **fields: Any
    ) -> broker_pb2.SendMessageResponseB2P:
        """Send a message."""
        data, flag = join_payload(attributes, body)
        values = {"clientId": self.client_id, "data": data, "flag": flag, "checkSum": -1, "sentAddr": 0} | fields
        request = broker_pb2.SendMessageRequestP2B(topicName=topic, partitionId=partition, **values)
        return await self.ask(rpc.SEND, request)

    async def store(self, *bodies: bytes, **fields: Any) -> list[int]:
        """Send messages one after the other, and return their offsets."""
        responses = [await self.send(body, **fields) for body in bodies]
        assert all(response.errCode == 200 for response in responses), responses
        return [response.appendOffset for response in responses]

    # --- consumers ------------------------------------------------------------------------------------------------------

    async def join(
        self, *topics: str, group: str = GROUP, conditions: Mapping[str, Iterable[str]] | None = None, **fields: Any
    ) -> master_pb2.RegisterResponseM2C:
        """Register a consumer at the Master."""
        texts = [format_condition(topic, types) for topic, types in (conditions or {}).items()]
        request = master_pb2.RegisterRequestC2M(
            clientId=self.client_id,
            groupName=group,
            hostName="127.0.0.1",
            topicList=topics or (TOPIC,),
            topicCondition=texts,
            **fields,
        )
        return await self.ask(rpc.CONSUMER_REGISTER, request)

    async def beat(
        self,
        *,
        group: str = GROUP,
        done: master_pb2.EventProto | None = None,
        held: Iterable[PartitionRef] | None = None,
    ) -> master_pb2.HeartResponseM2C:
        """Send a heartbeat to the Master, with an event that is done, and a report of what is held."""
        request = master_pb2.HeartRequestC2M(
            clientId=self.client_id, groupName=group, reportSubscribeInfo=held is not None, event=done
        )
        request.subscribeInfo.extend(format_subscription(self.client_id, group, ref) for ref in held or ())
        return await self.ask(rpc.CONSUMER_HEARTBEAT, request)

    async def leave(self, group: str = GROUP) -> None:
        """Leave a group."""
        request = master_pb2.CloseRequestC2M(clientId=self.client_id, groupName=group)
        assert (await self.ask(rpc.CONSUMER_CLOSE, request)).success

    async def own(
        self,
        topic: str = TOPIC,
        partition: int = 0,
        group: str = GROUP,
        *,
        status: int = FIRST,
        types: Iterable[str] = (),
        **fields: Any,
    ) -> broker_pb2.RegisterResponseB2C:
        """Register a partition."""
        request = broker_pb2.RegisterRequestC2B(
            opType=rpc.OP_REGISTER, clientId=self.client_id, groupName=group, topicName=topic, partitionId=partition,
            readStatus=status, filterCondStr=types, **fields,
        )  # fmt: skip
        return await self.ask(rpc.PARTITION_REGISTER, request)

    async def disown(
        self, topic: str = TOPIC, partition: int = 0, group: str = GROUP, *, consumed: bool = True
    ) -> broker_pb2.RegisterResponseB2C:
        """Unregister a partition."""
        request = broker_pb2.RegisterRequestC2B(
            opType=rpc.OP_UNREGISTER, clientId=self.client_id, groupName=group, topicName=topic, partitionId=partition,
            readStatus=0 if consumed else 1,
        )  # fmt: skip
        return await self.ask(rpc.PARTITION_REGISTER, request)

    async def beat_partitions(self, *refs: PartitionRef, group: str = GROUP) -> broker_pb2.HeartBeatResponseB2C:
        """Send a heartbeat to the Broker."""
        request = broker_pb2.HeartBeatRequestC2B(clientId=self.client_id, groupName=group, readStatus=0)
        request.partitionInfo.extend(map(str, refs))
        return await self.ask(rpc.PARTITION_HEARTBEAT, request)

    async def get(
        self, topic: str = TOPIC, partition: int = 0, group: str = GROUP, *, consumed: bool = False, **fields: Any
    ) -> broker_pb2.GetMessageResponseB2C:
        """Get messages."""
        request = broker_pb2.GetMessageRequestC2B(
            clientId=self.client_id, partitionId=partition, groupName=group, topicName=topic, lastPackConsumed=consumed, **fields
        )
        return await self.ask(rpc.GET, request)

    async def pack(self, *place: Any, **fields: Any) -> broker_pb2.GetMessageResponseB2C:
        """Get until there is something: under load a lane takes longer than a get waits."""
        async with asyncio.timeout(PATIENCE_S):
            while (response := await self.get(*place, **fields)).errCode == 404:
                await asyncio.sleep(0.01)
        return response

    async def confirm(
        self, topic: str = TOPIC, partition: int = 0, group: str = GROUP, *, consumed: bool = True
    ) -> broker_pb2.CommitOffsetResponseB2C:
        """Confirm the last pack, or roll it back."""
        request = broker_pb2.CommitOffsetRequestC2B(
            clientId=self.client_id, partitionId=partition, groupName=group, topicName=topic, lastPackConsumed=consumed
        )
        return await self.ask(rpc.COMMIT, request)

    async def assigned(self, group: str = GROUP) -> list[PartitionRef]:
        """Send heartbeats until partitions are assigned; return them. `event` is what the next heartbeat reports as done."""
        async with asyncio.timeout(PATIENCE_S):
            while not (response := await self.beat(group=group)).HasField("event"):
                await asyncio.sleep(0.01)
        self.event = response.event
        return [parse_subscription(text) for text in response.event.subscribeInfo]

    async def read(self, count: int, **fields: Any) -> list[bytes]:
        """Get and confirm packs until so many messages have come; return their bodies."""
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                response = await self.get(consumed=True, **fields)
                assert response.errCode in {200, 404}, response
                found += bodies_of(response)
        return found


def bodies_of(response: broker_pb2.GetMessageResponseB2C) -> list[bytes]:
    """Return the bodies of a response's messages."""
    return [split_payload(each.payLoadData, each.flag)[1] for each in response.messages]
