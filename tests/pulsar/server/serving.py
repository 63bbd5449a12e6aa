"""A listener for Pulsar clients over the embedded log, and a client that sends and receives raw frames."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.pulsar.server.broker import Broker
from mqbridge.pulsar.wire import client_commands, ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import Frame, FrameMeter, parse_frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandSubscribe, MessageMetadata, SingleMessageMetadata
from mqbridge.wire.cutter import FrameCutter
from tests.patience import PATIENCE_S

TOPIC = "persistent://public/default/t"
MAX_COMMAND_BYTES = 8 << 20
DEAD_LETTERS = "mqbridge-dead-app"


def listener_settings(**changes: Any) -> ListenerSettings:
    """Return the settings of a listener for tests."""
    values: dict[str, Any] = {
        "name": "app", "system": "pulsar", "host": "127.0.0.1", "port": 0, "web": None, "advertise": None, "cluster": "store",
        "topics": "persistent://public/default/{topic}", "owns_groups": True, "group": "{group}", "parking": "mqbridge-app",
        "create_partitions": 1, "manage": True, "deduplicate": False, "dead_letter_cluster": "store",
        "dead_letter_topic": DEAD_LETTERS, "connections": 1000, "in_flight_bytes": 64 << 20,
        "unacknowledged_bytes": 64 << 20, "unacknowledged_span": 10_000,
    }  # fmt: skip
    return ListenerSettings(**(values | changes))


class Serving:
    """A running listener, and its clients."""

    def __init__(self, listener: Listener, cluster: Cluster) -> None:
        self.listener, self.cluster = listener, cluster
        self.broker: Broker = listener.server.broker  # type: ignore[attr-defined]
        self.clients: list[RawClient] = []

    async def connect(self, *, handshake: bool = True) -> "RawClient":
        """Open a connection."""
        client = await RawClient.open(self.listener.port.port)
        self.clients.append(client)
        if handshake:
            await client.handshake()
        return client


@asynccontextmanager
async def serving(*, folder: Path | None = None, **changes: Any) -> AsyncIterator[Serving]:
    """Serve the embedded log in this folder, or in a temporary one."""
    async with AsyncExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="served")))
        cluster = LogCluster("store", LogSettings(path=str(folder / "log.db"), max_message_bytes="8MiB"))
        await cluster.connect()
        store = GroupStore(folder / "groups.db")
        listener = Listener(listener_settings(**changes), load_servers()["pulsar"], cluster, cluster, store, "me")
        listener.bind()
        await listener.start()
        served = Serving(listener, cluster)
        try:
            yield served
        finally:
            for client in served.clients:
                await client.close()
            await listener.close(asyncio.get_running_loop().time() + 5)
            await store.close()
            await cluster.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class RawClient:
    """A client's connection; answers PING by itself unless it is `silent`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer, self.silent = writer, False
        self.frames: list[Frame] = []
        """What was received and not taken."""
        self.ended = asyncio.Event()
        self._reader = reader
        self._arrived = asyncio.Condition()
        self._request = 0
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, port: int) -> "RawClient":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def _read(self) -> None:
        cutter = FrameCutter(FrameMeter(MAX_COMMAND_BYTES).measure)
        try:
            while data := await self._reader.read(1 << 16):
                for one in cutter.feed(data):
                    frame = parse_frame(one)
                    if frame.type == BaseCommand.PING:
                        if not self.silent:
                            self.send(client_commands.PONG)
                        continue
                    self.frames.append(frame)
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

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def close(self) -> None:
        self.writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait_ended(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()

    async def next(self, wanted: Callable[[Frame], bool] = lambda _: True) -> Frame:
        """Wait for a frame, and take it."""
        async with asyncio.timeout(PATIENCE_S), self._arrived:
            while True:
                for index, frame in enumerate(self.frames):
                    if wanted(frame):
                        return self.frames.pop(index)
                assert not self.ended.is_set(), "the server has closed the connection"
                await self._arrived.wait()

    async def of(self, kind: int) -> Any:
        """Wait for the next command of this type, and return its own part."""
        return part_of((await self.next(lambda frame: frame.type == kind)).command)

    async def answer(self, request_id: int) -> Any:
        """Wait for the answer to a request, and return its own part."""
        frame = await self.next(lambda frame: getattr(part_of(frame.command), "request_id", None) == request_id)
        return part_of(frame.command)

    def number(self) -> int:
        """Return a new request id."""
        self._request += 1
        return self._request

    async def handshake(self) -> Any:
        self.send(client_commands.connect("test", "none", b"", None))
        return await self.of(BaseCommand.CONNECTED)

    async def ping(self) -> None:
        """Wait until everything that was sent before is handled."""
        self.send(client_commands.PING)
        await self.of(BaseCommand.PONG)

    # --- producers and consumers ------------------------------------------------------------------------------------

    def producer_frame(self, request: int, producer: int = 1, topic: str = TOPIC, **fields: Any) -> bytes:
        return client_commands.producer(request, pb.CommandProducer(topic=topic, producer_id=producer, **fields))

    async def produce(self, producer: int = 1, topic: str = TOPIC, **fields: Any) -> Any:
        """Open a producer; return the answer."""
        request = self.number()
        self.send(self.producer_frame(request, producer, topic, **fields))
        return await self.answer(request)

    def send_entry(self, payload: bytes, sequence: int = 0, producer: int = 1, **metadata: Any) -> None:
        self.send(entry_frame(payload, sequence, producer, **metadata))

    async def store(self, *payloads: bytes, producer: int = 1, **metadata: Any) -> list[ids.EntryId]:
        """Send entries of one message each, and return their ids."""
        for sequence, payload in enumerate(payloads):
            self.send_entry(payload, sequence, producer, **metadata)
        return [ids.entry_id((await self.of(BaseCommand.SEND_RECEIPT)).message_id) for _ in payloads]

    def subscribe_frame(self, request: int, consumer: int = 1, topic: str = TOPIC, **fields: Any) -> bytes:
        values = {"subType": CommandSubscribe.Exclusive, "subscription": "s", "initialPosition": CommandSubscribe.Earliest}
        command = CommandSubscribe(topic=topic, consumer_id=consumer, **(values | fields))
        return client_commands.subscribe(request, command)

    async def subscribe(self, consumer: int = 1, topic: str = TOPIC, *, permits: int = 0, **fields: Any) -> Any:
        """Open a consumer; return the answer."""
        request = self.number()
        self.send(self.subscribe_frame(request, consumer, topic, **fields))
        answer = await self.answer(request)
        if permits:
            self.send(client_commands.flow(consumer, permits))
        return answer

    async def message(self) -> tuple[ids.EntryId, bytes]:
        """Wait for a message; return its id and payload."""
        frame = await self.next(lambda frame: frame.type == BaseCommand.MESSAGE)
        return ids.entry_id(frame.command.message.message_id), payload_of(frame)

    async def messages(self, count: int) -> list[bytes]:
        return [(await self.message())[1] for _ in range(count)]

    def ack(self, *entries: ids.EntryId, consumer: int = 1, cumulative: bool = False, request: int | None = None) -> None:
        self.send(client_commands.ack(consumer, cumulative, [ids.message_id(*entry) for entry in entries], request))


def part_of(command: BaseCommand) -> Any:
    """Return the part of a command that belongs to its type."""
    return next((value for field, value in command.ListFields() if field.name != "type"), None)


def entry_frame(payload: bytes, sequence: int = 0, producer: int = 1, count: int = 1, **metadata: Any) -> bytes:
    """Return a SEND frame."""
    values = {"producer_name": "p", "sequence_id": sequence, "publish_time": 1_700_000_000_000} | metadata
    return SendEncoder(producer).encode(sequence, 0, count, MessageMetadata(**values), payload) + payload


def batch_frame(payloads: Iterable[bytes], sequence: int = 0, producer: int = 1, **metadata: Any) -> bytes:
    """Return a SEND frame of a batch."""
    parts = [(SingleMessageMetadata(), payload) for payload in payloads]
    return entry_frame(join_batch(parts), sequence, producer, len(parts), num_messages_in_batch=len(parts), **metadata)


def payload_of(frame: Frame) -> bytes:
    """Return the payload of a MESSAGE."""
    data = frame.data[frame.entry_offset + 6 :]
    return data[4 + int.from_bytes(data[:4]) :]
