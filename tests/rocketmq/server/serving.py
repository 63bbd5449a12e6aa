"""A listener for RocketMQ clients over the embedded log, and a client that sends commands, and receives answers and requests."""

import asyncio
import itertools
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import batch_of_units
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.listener.topics import ListenedTopic
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Unit
from mqbridge.rocketmq.mapping.sdk_units import SentRecordFormat
from mqbridge.rocketmq.server.server import RocketMQServer
from mqbridge.rocketmq.wire.batch import encode_batch
from mqbridge.rocketmq.wire.bodies.groups import CLUSTERING, FROM_FIRST, PASSIVELY, ConsumerData, Heartbeat, SubscriptionData
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import ONEWAY, Command, decode, encode, measure
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.groups import UnregisterHeader
from mqbridge.rocketmq.wire.headers.offsets import OffsetResult, QueryOffsetHeader, UpdateOffsetHeader
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader, PullResult
from mqbridge.rocketmq.wire.headers.send import SendHeader, SendResultHeader
from mqbridge.rocketmq.wire.properties import Name, join
from mqbridge.rocketmq.wire.record import Record, SysFlag, decode_records
from mqbridge.wire.cutter import FrameCutter
from tests.patience import PATIENCE_S

GROUP, TOPIC = "g", "t"
MAX_BYTES = 8 << 20
DEAD_LETTERS = "mqbridge-dead-app"
PULL_HELD = PullFlag.SUSPEND
PULL_FREE = PullFlag.SUBSCRIPTION


def listener_settings(**changes: Any) -> ListenerSettings:
    """Return the settings of a listener for tests."""
    values: dict[str, Any] = {
        "name": "app", "system": "rocketmq", "host": "127.0.0.1", "port": 0, "web": None, "advertise": None, "cluster": "store",
        "topics": "{topic}", "owns_groups": True, "group": "{group}", "parking": "mqbridge-app",
        "create_partitions": 1, "manage": True, "deduplicate": False, "dead_letter_cluster": "store",
        "dead_letter_topic": DEAD_LETTERS, "connections": 1000, "in_flight_bytes": 64 << 20,
        "unacknowledged_bytes": 64 << 20, "unacknowledged_span": 10_000,
    }  # fmt: skip
    return ListenerSettings(**(values | changes))


class RocketMQServing:
    """A running listener, and its clients."""

    def __init__(self, listener: Listener, cluster: Cluster) -> None:
        self.listener, self.cluster = listener, cluster
        assert isinstance(listener.server, RocketMQServer)
        self.server = listener.server
        self.broker = self.server.broker
        self.broker.clients.began_at = -inf  # it has served for long
        self.clients: list[RawRemotingClient] = []

    async def connect(self, client_id: str = "c", language: str = "JAVA") -> "RawRemotingClient":
        """Open a connection."""
        client = await RawRemotingClient.open(self.listener.port.port, client_id, language)
        self.clients.append(client)
        return client

    async def create(self, name: str = TOPIC, queues: int = 1) -> ListenedTopic:
        """Create a topic, or grow it."""
        await self.listener.topics.create(name, queues, is_partitioned=True)
        topic = await self.broker.find_topic(name)
        assert topic is not None
        return topic

    async def append(self, *units: Unit | Message, topic: str = TOPIC, queue: int = 0) -> None:
        """Store units, or messages that no client of this protocol has sent, past the server."""
        listened = await self.broker.find_topic(topic)
        assert listened is not None
        publisher = await self.listener.publishers.open(listened, queue)
        stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        messages = [each for each in units if isinstance(each, Message)]
        batch = Batch.of(messages) if messages else batch_of_units(SentRecordFormat(), [*units])  # type: ignore[list-item]
        publisher.publish(self.listener.publishers.outbound_index(publisher, queue), batch, stored.set_result)
        assert (await stored).problem is None
        await self.listener.publishers.close(publisher)

    async def stored(self, topic: str) -> list[Message]:
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

    async def members(self, group: str = GROUP) -> list[str]:
        known = self.broker.clients.consumers.get(group)
        return [] if known is None else list(known.members)


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
async def gateway(cluster: Cluster, folder: Path, name: str = "me", **changes: Any) -> AsyncIterator[RocketMQServing]:
    """Start a gateway over a cluster; it has a state file of its own."""
    store = GroupStore(folder / f"groups-{name}.db")
    changes = {"cluster": cluster.name, "dead_letter_cluster": cluster.name} | changes
    listener = Listener(listener_settings(**changes), load_servers()["rocketmq"], cluster, cluster, store, name)
    listener.bind()
    await listener.start()
    served = RocketMQServing(listener, cluster)
    try:
        yield served
    finally:
        for client in served.clients:
            await client.close()
        await listener.close(asyncio.get_running_loop().time() + 5)
        await store.close()


@asynccontextmanager
async def serving(*, folder: Path | None = None, **changes: Any) -> AsyncIterator[RocketMQServing]:
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


async def rounds(count: int = 20) -> None:
    """Let everything run that is ready to."""
    for _ in range(count):
        await asyncio.sleep(0)


class RawRemotingClient:
    """A client's connection; requests of the server are kept until they are taken, and answered by nobody."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str, language: str) -> None:
        self.writer, self.client_id, self.language = writer, client_id, language
        self.version, self.binary = 479, False
        self.received: list[Command] = []
        """What was received and not taken."""
        self.ended = asyncio.Event()
        self._reader = reader
        self._arrived = asyncio.Condition()
        self._opaque = itertools.count(1)
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, port: int, client_id: str = "c", language: str = "JAVA") -> "RawRemotingClient":
        return cls(*await asyncio.open_connection("127.0.0.1", port), client_id, language)

    async def _read(self) -> None:
        cutter = FrameCutter(measure)
        try:
            while data := await self._reader.read(1 << 16):
                self.received += map(decode, cutter.feed(data))
                async with self._arrived:
                    self._arrived.notify_all()
        except OSError:
            pass
        finally:
            self.ended.set()
            async with self._arrived:
                self._arrived.notify_all()

    @property
    def address(self) -> str:
        host, port = self.writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def stop_reading(self) -> None:
        """Read nothing any more; the kernel takes little."""
        self._task.cancel()
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def close(self) -> None:
        self.writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait_ended(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()

    # --- commands -------------------------------------------------------------------------------------------------------

    def command(self, code: int, header: Header | Mapping[str, str] | None = None, body: bytes = b"", flag: int = 0) -> Command:
        """Return a new request."""
        ext = header.encode() if isinstance(header, Header) else dict(header or {})
        return Command(code, ext, body, opaque=next(self._opaque), flag=flag, language=self.language, version=self.version)

    def write(self, *commands: Command) -> None:
        self.writer.write(b"".join(encode(each, binary=self.binary) for each in commands))

    def start(self, code: int, header: Header | Mapping[str, str] | None = None, body: bytes = b"") -> int:
        """Send a request, and return its number."""
        command = self.command(code, header, body)
        self.write(command)
        return command.opaque

    def oneway(self, code: int, header: Header | Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request that is not answered."""
        self.write(self.command(code, header, body, ONEWAY))

    async def next(self, wanted: Callable[[Command], bool] = lambda _: True) -> Command:
        """Wait for a command, and take it."""
        async with asyncio.timeout(PATIENCE_S), self._arrived:
            while True:
                for index, command in enumerate(self.received):
                    if wanted(command):
                        return self.received.pop(index)
                assert not self.ended.is_set(), "the server has closed the connection"
                await self._arrived.wait()

    async def answer(self, opaque: int) -> Command:
        """Wait for the answer to a request."""
        return await self.next(lambda command: command.is_response and command.opaque == opaque)

    async def pushed(self, code: int) -> Command:
        """Wait for a request of the server."""
        return await self.next(lambda command: not command.is_response and command.code == code)

    def has(self, opaque: int) -> bool:
        """Return True if the answer to a request has come."""
        return any(command.is_response and command.opaque == opaque for command in self.received)

    def was_pushed(self, code: int) -> bool:
        """Return True if the server has sent such a request."""
        return any(not command.is_response and command.code == code for command in self.received)

    async def ask(self, code: int, header: Header | Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request, and return the answer."""
        return await self.answer(self.start(code, header, body))

    async def settle(self) -> None:
        """Wait until everything that was sent before was handed to its handler."""
        assert (await self.ask(99_999)).code == Status.REQUEST_CODE_NOT_SUPPORTED

    # --- producers ------------------------------------------------------------------------------------------------------

    async def produce(self, *groups: str) -> None:
        """Send the heartbeat of a producer."""
        assert (await self.ask(Code.HEART_BEAT, None, Heartbeat(self.client_id, groups or ("p",), ()).encode())).code == 0

    def start_send(
        self, body: bytes, topic: str = TOPIC, queue: int = 0, *, code: int = Code.SEND_MESSAGE_V2, **fields: Any
    ) -> int:
        """Send a message; the properties are given as pairs."""
        return self.start(code, send_header(topic, queue, **fields), body)

    async def send(self, body: bytes, topic: str = TOPIC, queue: int = 0, **fields: Any) -> Command:
        """Send a message, and return the answer."""
        return await self.answer(self.start_send(body, topic, queue, **fields))

    async def store(self, *bodies: bytes, topic: str = TOPIC, queue: int = 0, **fields: Any) -> list[SendResultHeader]:
        """Store messages one after the other, and return the results."""
        results = []
        for body in bodies:
            answer = await self.send(body, topic, queue, **fields)
            assert answer.code == Status.SUCCESS, answer
            results.append(SendResultHeader.decode(answer.ext))
        return results

    # --- consumers ------------------------------------------------------------------------------------------------------

    async def join(
        self, *topics: str, group: str = GROUP, expression: str = "*", without: bool = False, **fields: Any
    ) -> Command:
        """Send the heartbeat of a consumer."""
        subscriptions = tuple(SubscriptionData(topic, expression, 1) for topic in topics)
        values = {"consume_type": PASSIVELY, "message_model": CLUSTERING, "consume_from": FROM_FIRST} | fields
        data = ConsumerData(group, subscriptions, **values)
        body = Heartbeat(self.client_id, (), (data,), without_subscriptions=without).encode()
        answer = await self.ask(Code.HEART_BEAT, None, body)
        assert answer.code == 0, answer
        return answer

    async def leave(self, group: str = GROUP) -> None:
        """Leave a group."""
        assert (await self.ask(Code.UNREGISTER_CLIENT, UnregisterHeader(self.client_id, None, group))).code == 0

    def start_pull(self, offset: int, topic: str = TOPIC, queue: int = 0, *, code: int = Code.PULL_MESSAGE, **fields: Any) -> int:
        """Send a pull."""
        return self.start(code, pull_header(offset, topic, queue, **fields))

    async def pull(self, offset: int, topic: str = TOPIC, queue: int = 0, **fields: Any) -> Command:
        """Send a pull, and return the answer."""
        return await self.answer(self.start_pull(offset, topic, queue, **fields))

    async def read(self, offset: int, topic: str = TOPIC, queue: int = 0, **fields: Any) -> list[Record]:
        """Pull from an offset on, and return the records."""
        answer = await self.pull(offset, topic, queue, **fields)
        assert answer.code == Status.SUCCESS, answer
        return decode_records(answer.body)

    async def read_all(self, count: int, topic: str = TOPIC, queue: int = 0, offset: int = 0, **fields: Any) -> list[Record]:
        """Pull until so many records have come."""
        found: list[Record] = []
        while len(found) < count:
            answer = await self.pull(offset, topic, queue, **({"sys_flag": PULL_FREE | PULL_HELD} | fields))
            offset = next_of(answer)
            if answer.code == Status.SUCCESS:
                found += decode_records(answer.body)
        return found

    async def commit(self, offset: int, topic: str = TOPIC, queue: int = 0, group: str = GROUP) -> Command:
        """Commit an offset."""
        return await self.ask(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader(group, topic, queue, offset))

    async def committed(self, topic: str = TOPIC, queue: int = 0, group: str = GROUP) -> int | None:
        """Return the offset that a group has committed; None if it has none."""
        answer = await self.ask(Code.QUERY_CONSUMER_OFFSET, QueryOffsetHeader(group, topic, queue, False))
        return None if answer.code == Status.QUERY_NOT_FOUND else OffsetResult.decode(answer.ext).offset


def send_header(topic: str = TOPIC, queue: int = 0, **fields: Any) -> SendHeader:
    """Return the header of a send; `properties` are pairs, or a string."""
    properties = fields.pop("properties", "")
    if not isinstance(properties, str):
        properties = join(list(properties))
    return SendHeader("p", topic, queue, 1_700_000_000_000, properties, **fields)


def batch_of(*bodies: bytes) -> bytes:
    """Return the body of a batch."""
    return encode_batch([(0, body, join([(Name.UNIQ_KEY, f"B{index}")]).encode()) for index, body in enumerate(bodies)])


def pull_header(offset: int, topic: str = TOPIC, queue: int = 0, **fields: Any) -> PullHeader:
    """Return the header of a pull."""
    values: dict[str, Any] = {
        "consumer_group": GROUP, "max_msg_nums": 32, "sys_flag": PULL_FREE, "commit_offset": 0,
        "suspend_timeout_millis": 15_000, "sub_version": 0, "subscription": "*", "expression_type": "TAG",
    }  # fmt: skip
    return PullHeader(topic=topic, queue_id=queue, queue_offset=offset, **(values | fields))


def result_of(answer: Command) -> PullResult:
    return PullResult.decode(answer.ext)


def next_of(answer: Command) -> int:
    return result_of(answer).next_begin_offset


def bodies_of(records: Sequence[Record]) -> list[bytes]:
    return [record.body for record in records]


HALF = SysFlag.PREPARED
