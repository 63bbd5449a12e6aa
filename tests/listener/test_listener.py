"""A listener is bound, started and closed, also at the wrong moment, and when parts of it fail."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ConfigError, LocalProtocolError
from mqbridge.listener.listener import Listener, ListenerSettings, ListenerState, reserved_topics
from mqbridge.listener.publisher import Stored
from mqbridge.listener.server import ServedSystem, ServerCounts, Services
from mqbridge.message import Batch, Message
from mqbridge.net.listen import ClientSession, ServedEndpoint
from mqbridge.net.tasks import spawn
from tests.listener.faulty import FORMAT, START, Listened, Sharing, until
from tests.patience import PATIENCE_S


class SilentSession:
    def measure(self, data: bytes | bytearray, at: int) -> int:
        return len(data) - at

    def on_connected(self, endpoint: ServedEndpoint) -> None:
        endpoint.handshake_done()

    def on_frames(self, frames: list[bytes]) -> None:
        pass

    def on_lost(self, error: Exception) -> None:
        pass


class ScriptedServer:
    """A server whose steps hang or fail on demand."""

    refusal = b""
    web: Any = None
    counts = ServerCounts()

    def __init__(self, services: Services) -> None:
        self.services = services
        self.start_gate, self.drain_gate = asyncio.Event(), asyncio.Event()
        self.start_gate.set()
        self.drain_gate.set()
        self.drain_error: Exception | None = None
        self.drains = 0

    def make_session(self) -> ClientSession:
        return SilentSession()

    async def start(self) -> None:
        await self.start_gate.wait()

    async def close(self, deadline: float) -> None:
        pass

    async def drain(self, deadline: float) -> None:
        self.drains += 1
        await self.drain_gate.wait()
        if self.drain_error is not None:
            raise self.drain_error

    def describe(self) -> Mapping[str, Any]:
        return {}


class ListenerBench(Listened):
    def __init__(self, path: Path) -> None:
        super().__init__("listening", path)
        self.listener = self.make()

    def make(self, port: int = 0, **changes: Any) -> Listener:
        settings = ListenerSettings(
            **{
                "name": "app",
                "system": "test",
                "host": "127.0.0.1",
                "port": port,
                "web": None,
                "advertise": None,
                "cluster": "listening",
                "topics": "{topic}",
                "owns_groups": False,
                "group": "{group}",
                "parking": "mqbridge-app",
                "create_partitions": 1,
                "manage": False,
                "deduplicate": False,
                "dead_letter_cluster": "listening",
                "dead_letter_topic": "mqbridge-dead-app",
                "connections": 10,
                "in_flight_bytes": 1000,
                "unacknowledged_bytes": 1000,
                "unacknowledged_span": 1000,
            }
            | changes
        )
        system = ServedSystem(
            system="test",
            port=0,
            web_port=None,
            unit_format=FORMAT,
            default_topics="{topic}",
            answers_in_order=True,
            make=ScriptedServer,
        )
        return Listener(settings, system, self.cluster, self.cluster, self.store, "gateway")

    @property
    def server(self) -> ScriptedServer:
        assert isinstance(self.listener.server, ScriptedServer)
        return self.listener.server

    async def close_listener(self, seconds: float = 5.0) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.listener.close(asyncio.get_running_loop().time() + seconds)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ListenerBench]:
    made = ListenerBench(tmp_path / "state.db")
    yield made
    made.requests.release()
    await made.close_listener()
    assert made.listener.state is ListenerState.STOPPED
    await until(lambda: made.cluster.open_outbounds == 0)
    await made.close()


async def test_it_serves_from_its_start_to_its_end(bench: ListenerBench) -> None:
    bench.listener.bind()
    with pytest.raises(LocalProtocolError):
        bench.listener.bind()
    await bench.listener.start()
    _, writer = await asyncio.open_connection("127.0.0.1", bench.listener.port.port)
    await until(lambda: len(bench.listener.port.connections) == 1)
    topic = await bench.topic()
    await bench.listener.publishers.open(topic, 0)
    await bench.listener.groups.open(topic, 0, "g", START, Sharing.SHARED)
    assert bench.listener.state is ListenerState.SERVING
    port = bench.listener.port.port
    writer.close()
    await bench.close_listener()
    assert bench.cluster.members("g") == 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_in_use_is_an_error_of_the_configuration(bench: ListenerBench) -> None:
    bench.listener.bind()
    other = bench.make(bench.listener.port.port)
    with pytest.raises(ConfigError, match="cannot listen"):
        other.bind()
    assert other.state is ListenerState.STOPPED


async def test_own_groups_need_a_state_file(bench: ListenerBench) -> None:
    store, bench.store = bench.store, None
    with pytest.raises(ConfigError, match="state file"):
        bench.make(owns_groups=True)
    bench.store = store
    assert bench.make(owns_groups=True).state is ListenerState.STOPPED


async def test_it_is_closed_while_it_starts(bench: ListenerBench) -> None:
    bench.listener.bind()
    bench.server.start_gate.clear()
    starting = spawn(bench.listener.start(), "start", log_errors=False)
    await asyncio.sleep(0)
    await bench.close_listener()
    bench.server.start_gate.set()
    with pytest.raises(LocalProtocolError):
        await starting
    assert bench.listener.state is ListenerState.STOPPED


async def test_it_is_closed_while_its_port_starts(bench: ListenerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.listener.bind()
    gate, start = asyncio.Event(), bench.listener.port.start

    async def start_slowly() -> None:
        await start()
        await gate.wait()

    monkeypatch.setattr(bench.listener.port, "start", start_slowly)
    starting = spawn(bench.listener.start(), "start", log_errors=False)
    await asyncio.sleep(0.01)
    await bench.close_listener()
    gate.set()
    with pytest.raises(LocalProtocolError):
        await starting
    assert bench.listener.state is ListenerState.STOPPED


@pytest.mark.parametrize("failure", ["error", "hang"])
async def test_groups_are_left_although_the_server_cannot_be_drained(bench: ListenerBench, failure: str) -> None:
    bench.listener.bind()
    await bench.listener.start()
    await bench.listener.groups.open(await bench.topic(), 0, "g", START, Sharing.SHARED)
    if failure == "error":
        bench.server.drain_error = ZeroDivisionError("a bug")
    else:
        bench.server.drain_gate.clear()
    await bench.close_listener(0.2)
    assert bench.cluster.members("g") == 0
    assert bench.listener.state is ListenerState.STOPPED


async def test_it_is_closed_once(bench: ListenerBench) -> None:
    bench.listener.bind()
    await bench.listener.start()
    await asyncio.gather(bench.close_listener(), bench.close_listener())
    assert bench.server.drains == 1


async def test_producers_that_wait_for_the_backing_do_not_keep_groups_from_being_left(bench: ListenerBench) -> None:
    bench.listener.bind()
    await bench.listener.start()
    topic = await bench.topic()
    await bench.listener.groups.open(topic, 0, "g", START, Sharing.SHARED)
    publisher = await bench.listener.publishers.open(topic, 0)
    bench.cluster.broker.faults.hold_receipts = True
    answers: list[Stored] = []
    publisher.publish(0, Batch.of([Message(b"a")]), answers.append)
    closing = spawn(bench.close_listener(3.0), "close")
    await until(lambda: bench.cluster.members("g") == 0)
    assert not closing.done()
    bench.cluster.broker.release_receipts()
    await closing
    assert [answer.problem for answer in answers] == [None]


async def test_the_dead_letter_topic_is_made_and_opened_again_when_it_breaks(bench: ListenerBench) -> None:
    """A client that got an error would send its batch again for ever."""
    bench.listener.bind()
    topic = await bench.topic()
    publisher = await bench.listener.publishers.open(topic, 0)
    bench.cluster.broker.faults.refuse = lambda message: "it is bad" if message.property("mqbridge.dead.reason") is None else None

    async def publish() -> Stored:
        answers: list[Stored] = []
        publisher.publish(0, Batch.of([Message(b"a")]), answers.append)
        await until(lambda: bool(answers))
        return answers[0]

    assert (await publish()).dead_letters == 1
    bench.cluster.broker.delete("mqbridge-dead-app")
    assert (await publish()).problem is not None
    assert (await publish()).dead_letters == 1
    bench.cluster.broker.faults.create_error = "not permitted"
    bench.cluster.broker.delete("mqbridge-dead-app")
    for _ in range(2):
        assert (await publish()).problem is not None
    bench.cluster.broker.faults.create_error = None
    assert (await publish()).dead_letters == 1
    assert len(bench.cluster.broker.topics["mqbridge-dead-app"][0].messages) == 1


def test_topics_of_the_gateway_are_not_served(bench: ListenerBench) -> None:
    is_reserved = reserved_topics(bench.listener.settings, bench.cluster)
    hidden = [
        "mqbridge-dead-app",
        "mqbridge-dead-other",
        "mqbridge-schemas",
        "mqbridge-app",
        "mqbridge-app-10s",
        "mqbridge-other-moves",
    ]
    shown = ["orders", "mqbridge-application", "orders-moves"]
    assert [name for name in [*hidden, *shown] if not is_reserved(name)] == shown
