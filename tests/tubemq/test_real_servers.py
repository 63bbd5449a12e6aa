"""Servers that join, leave and change roles: a second Broker, three Masters, and connections cut at every step."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from mqbridge.errors import ClusterError, ConnectionLost
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.held_partitions import HeldPartitions, StartOffset
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.producer.send_result import SendResult
from mqbridge.tubemq.library.load_balancing_sender import open_load_balancing_sender
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.frame import FrameMeter, split_frame
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, RegisterResponseB2C
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_more import SecondBroker, StandbyMasters
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import Client, RecordingReader, fresh_group, in_order, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

Open = Callable[..., Awaitable[Client]]


async def test_a_new_broker_is_used_and_a_dead_one_is_avoided(own: TubeMQ, open_client: Open) -> None:
    """A running producer and consumer use a new Broker's partitions; messages without a key avoid a dead Broker."""
    client = await open_client(own)
    sender = await client.sender("demo")
    reading = await client.consumer("demo")
    any_partition = await open_load_balancing_sender(client.routes, client.connections, "demo")
    client.stack.push_async_callback(any_partition.close, 5.0)
    await asyncio.gather(*(sender.send(f"1:{n % 2}", b"%04d" % n) for n in range(100)))
    await until(lambda: reading.count == 100)

    second = SecondBroker(own)
    try:
        await asyncio.to_thread(second.start)
        await asyncio.to_thread(second.add_topic, "demo", 3)
        await until(lambda: list(sender.route.partitions) == ["1:0", "1:1", "2:0", "2:1", "2:2"])
        await asyncio.gather(*(sender.send(f"2:{n % 3}", b"%04d" % n) for n in range(100, 200)))
        await until(lambda: reading.count == 200 and len(reading.held) == 5)

        count, sent = 0, []

        async def send() -> None:
            nonlocal count
            while count < 600:
                sent.append(any_partition.send(b"any %04d" % count))
                count += 1
                await asyncio.sleep(0.002)

        sending = spawn(send(), "test sends to any partition")
        await until(lambda: count > 100)
        now = asyncio.get_running_loop().time

        def avoided() -> list[int]:
            return [broker.id for broker in any_partition.blocklist.avoided_brokers(now())]

        # Messages that only the memory of the second Broker has are lost; this test counts results of sends, not messages read.
        on_second = len([name for name in reading.got if name.startswith("2:")])
        assert avoided() == []
        await asyncio.to_thread(second.kill)
        await until(lambda: avoided() == [2])
        (dead,) = [record for broker, record in any_partition.blocklist._records.items() if broker.id == 2]
        (well,) = [record for broker, record in any_partition.blocklist._records.items() if broker.id == 1]
        # While the dead Broker is avoided, no message is sent to it. Each comparison of the Brokers resets the counts.
        tried, at_first = dead.sent, well.sent
        await until(lambda: avoided() != [2] or well.sent > at_first + 20 or well.sent < at_first)
        assert avoided() != [2] or dead.sent in (tried, 0)
        await sending
        results = await asyncio.wait_for(asyncio.gather(*sent), SERVER_PATIENCE_S)
        assert all(isinstance(result, SendResult) for result in results)
        assert on_second == 3
        assert {ref.broker.id for ref in sender.route.listed} <= {1, 2}
        assert avoided() in ([], [2])
    finally:
        second.kill()


@pytest.fixture
def three_masters() -> Iterator[tuple[TubeMQ, StandbyMasters]]:
    cluster = TubeMQ({"demo": 2}, pool={})
    standby = StandbyMasters(cluster)
    try:
        cluster.master.start()
        standby.start()
        cluster._admin.add_broker(cluster._store_settings)
        cluster._admin.add_topics(cluster.topics)
        cluster.broker.start()
        yield cluster, standby
    finally:
        standby.kill()
        cluster.kill()


async def test_the_leading_master_dies(three_masters: tuple[TubeMQ, StandbyMasters], open_client: Open) -> None:
    cluster, standby = three_masters
    # A standby comes first in the list: the leading one has to be found.
    client = await open_client(cluster, masters=",".join(reversed(standby.addresses)))
    sender = await client.sender("demo")
    reading = await client.consumer("demo")
    await sender.send("1:0", b"000")
    await until(lambda: reading.count == 1)
    assert f"127.0.0.1:{client.masters.addresses[client.masters._current][1]}" == standby.addresses[0]
    await asyncio.to_thread(cluster.master.kill)
    master_seen_at = reading.consumer.held_partitions.master_seen_at
    number = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while reading.consumer.held_partitions.master_seen_at == master_seen_at or number < 20:
            number += 1
            await sender.send("1:0", b"%03d" % number)
            await asyncio.sleep(0.05)
    assert client.masters._current != 2
    await client.routes.refresh()
    await until(lambda: reading.got["1:0"][-1] == b"%03d" % number)
    assert set(reading.got["1:0"]) == {b"%03d" % n for n in range(number + 1)}
    assert in_order(reading.got["1:0"])


# --- connections that are cut -----------------------------------------------------------------------------------------

CUT_METHODS = [
    rpc.PRODUCER_HEARTBEAT,
    rpc.SEND,
    rpc.CONSUMER_REGISTER,
    rpc.CONSUMER_HEARTBEAT,
    rpc.PARTITION_REGISTER,
    rpc.PARTITION_HEARTBEAT,
    rpc.GET,
    rpc.COMMIT,
]


class Cutter:
    """A proxy in front of every server: cuts the connection at the nth request of a method.

    `plan` has the step by (method, n): before the request arrives, or before its response is sent. With step "late" the request
    is withheld, and arrives when `deliver` is called.
    """

    def __init__(self) -> None:
        self.late: list[tuple[int, bytes]] = []
        self.plan: dict[tuple[int, int], str] = {}
        self.done: list[tuple[int, str]] = []
        self._counts: dict[int, int] = {}
        self._servers: list[asyncio.Server] = []
        self._ports: dict[int, int] = {}

    async def port_for(self, target: int) -> int:
        if target not in self._ports:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: _Side(self, target).client, "127.0.0.1", 0)
            self._servers.append(server)
            self._ports[target] = server.sockets[0].getsockname()[1]
        return self._ports[target]

    def fault(self, method: int) -> str | None:
        number = self._counts[method] = self._counts.get(method, 0) + 1
        step = self.plan.get((method, number))
        if step is not None:
            self.done.append((method, step))
        return step

    async def deliver(self) -> bytes:
        """Deliver the oldest withheld request; return the serialized response."""
        target, frame = self.late.pop(0)
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[list[bytes]] = loop.create_future()
        _, end = await loop.create_connection(
            lambda: Endpoint(FrameMeter().measure, answers.set_result, lambda _: None), "127.0.0.1", target
        )
        end.send(frame)
        (answer,) = await answers
        await end.close()
        return rpc.decode_response(split_frame(answer)[1])[1]

    def count(self, method: int) -> int:
        return self._counts.get(method, 0)

    async def close(self) -> None:
        for server in self._servers:
            server.close()


class _Side:
    """One connection through the proxy."""

    def __init__(self, cutter: Cutter, target: int) -> None:
        self._cutter, self._target = cutter, target
        self.client = Endpoint(FrameMeter().measure, self._asked, self._lost)
        self._server: Endpoint | None = None
        self._queued: list[bytes] = []
        self._cut_at: set[int] = set()
        spawn(self._dial(), "test proxy")

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_connection(
                lambda: Endpoint(FrameMeter().measure, self._answered, self._lost), "127.0.0.1", self._target
            )
        except OSError as error:
            self._lost(error)
            return
        self._server = server
        queued, self._queued = self._queued, []
        self._asked(queued)

    def _asked(self, frames: list[bytes]) -> None:
        if self._server is None:
            self._queued += frames
            return
        for frame in frames:
            serial, payload = split_frame(frame)
            step = self._cutter.fault(rpc.decode_request(payload).method)
            if step == "late":
                self._cutter.late.append((self._target, frame))
            if step in ("before", "late"):
                self._lost(ConnectionLost("cut by the proxy"))
                return
            if step == "after":
                self._cut_at.add(serial)
            if self._server.alive:
                self._server.send(frame)

    def _answered(self, frames: list[bytes]) -> None:
        for frame in frames:
            if split_frame(frame)[0] in self._cut_at:
                self._lost(ConnectionLost("cut by the proxy"))
                return
            if self.client.alive:
                self.client.send(frame)

    def _lost(self, error: Exception) -> None:
        for end in (self.client, self._server):
            if end is not None:
                end.abort(error)


class CutSessions(ConnectionPool):
    """A ConnectionPool whose connections pass through the proxy."""

    def __init__(self, ports: dict[int, int]) -> None:
        super().__init__(timeout_s=3.0)
        self._through = ports

    def connection_to(self, host: str, port: int, partition: str = "") -> ServerConnection:
        return super().connection_to(host, self._through[port], partition)


async def proxied(cutter: Cutter, client: Client, server: TubeMQ, open_client: Open) -> Client:
    """Another client, which reaches the Master and the Broker through the proxy."""
    client.stack.push_async_callback(cutter.close)
    ports = [int(server.masters.rpartition(":")[2]), server.broker_port]
    return await open_client(server, connections=CutSessions({port: await cutter.port_for(port) for port in ports}))


async def committed(connection: HeldPartition, _: Pack) -> None:
    """Commit the pack with a request of its own; if that fails, the pack is delivered again."""
    with contextlib.suppress(ClusterError):
        await connection.commit(consumed=True)


BACKLOG = 1500
"""Messages of a partition, some six packs."""


def numbered(n: int) -> bytes:
    return b"%04d" % n + bytes(2000)


async def test_cut_at_every_step(client: Client, tubemq: TubeMQ, open_client: Open) -> None:
    """There is a backlog of several packs, so the get requests that are cut have found messages."""
    cutter = Cutter()
    for method in CUT_METHODS:
        cutter.plan |= {(method, 2): "before", (method, 4): "after", (method, 5): "before"}
    topic = tubemq.take_topic(3)
    stored = await client.sender(topic)
    await asyncio.gather(*(stored.send(f"1:{index}", numbered(n)) for n in range(BACKLOG) for index in range(3)))
    cut = await proxied(cutter, client, tubemq, open_client)
    sender = await cut.sender(topic)
    first = await cut.consumer(topic)
    first.judge = committed
    number = BACKLOG
    others: list[RecordingReader] = []

    def happened(method: int) -> int:
        return sum(found == method for found, _ in cutter.done)

    async with asyncio.timeout(3 * SERVER_PATIENCE_S):
        # Registers are seldom: each new member brings one, and takes a partition or two.
        while any(happened(method) < 2 for method in CUT_METHODS):
            await asyncio.gather(*(sender.send(f"1:{index}", numbered(number)) for index in range(3)))
            number += 1
            await asyncio.sleep(0.05)
            if number - BACKLOG in (10, 30, 50):
                other = await cut.consumer(topic, first.consumer.membership.group)
                others.append(other)
                await until(lambda other=other: bool(other.held))  # type: ignore[misc]
                await other.consumer.close()
    sent = {f"1:{index}": {numbered(n) for n in range(number)} for index in range(3)}

    def numbers_read(name: str) -> set[bytes]:
        """Return the numbers that any member of the cut group has read: earlier members have confirmed theirs."""
        return {body for member in (first, *others) for body in member.got.get(name, ())}

    await until(lambda: all(numbers_read(name) == bodies for name, bodies in sent.items()))
    assert {found for found, _ in cutter.done} == set(CUT_METHODS)
    judge = await client.consumer(topic)
    await until(lambda: all(len(set(judge.got.get(f"1:{index}", ()))) == number for index in range(3)))
    for messages in judge.got.values():
        assert in_order(messages)
    for messages in first.got.values():
        assert in_order(messages)


async def test_a_late_registration_skips_no_pack(client: Client, tubemq: TubeMQ, open_client: Open) -> None:
    """The first registration is abandoned, and arrives while a pack of the second one is unconfirmed.

    The second registration has another client id than the member; the Broker accepts it all the same.

    Every pack is delivered once, heartbeats keep the registration, and the next member continues where this one ended.
    """
    cutter, topic = Cutter(), tubemq.take_topic(1)
    sender = await client.sender(topic)
    bodies = [numbered(n) for n in range(BACKLOG)]
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies))
    cutter.plan[rpc.PARTITION_REGISTER, 1] = "late"
    cut = await proxied(cutter, client, tubemq, open_client)
    first = await cut.consumer(topic)
    refusals: list[int] = []

    async def judge(held: HeldPartition, _: Pack) -> None:
        if cutter.late:
            refusals.append(RegisterResponseB2C.FromString(await cutter.deliver()).errCode)
        held.confirm()

    first.judge = judge
    await until(lambda: first.count >= len(bodies))
    (held,) = first.consumer.held_partitions.held.values()
    assert first.got["1:0"] == bodies
    assert refusals == [codes.PARTITION_OCCUPIED]
    assert held.client_id != first.consumer.membership.client_id
    heard = {method: cutter.count(method) + 3 for method in (rpc.PARTITION_HEARTBEAT, rpc.CONSUMER_HEARTBEAT)}
    await until(lambda: all(cutter.count(method) >= count for method, count in heard.items()))
    assert first.held == {"1:0"}
    await first.consumer.close()
    await sender.send("1:0", b"the next")
    second = await client.consumer(topic, first.consumer.membership.group)
    await until(lambda: second.count > 0)
    assert second.got["1:0"] == [b"the next"]


async def test_a_late_get_of_an_earlier_assignment_confirms_no_pack(client: Client, tubemq: TubeMQ, open_client: Open) -> None:
    """An abandoned get that would confirm a pack under the member's id arrives when the member holds the partition again."""
    cutter, topic = Cutter(), tubemq.take_topic(1)
    sender = await client.sender(topic)
    bodies = [numbered(n) for n in range(BACKLOG)]
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies))
    cutter.plan[rpc.GET, 2] = "late"
    cut = await proxied(cutter, client, tubemq, open_client)
    member = MemberIdentity(cut.masters, fresh_group(), [topic], {}, priority=303)
    await member.identify()
    partitions = HeldPartitions(member, start=StartOffset.EARLIEST, heartbeat_s=60.0, budget=ReadBudget(GET_BYTES), offsets=None)
    partitions.master_seen_at = asyncio.get_running_loop().time()
    got: list[bytes] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        held = await partitions.acquire(sender.route.partitions["1:0"])
        for _ in range(2):  # the second get is lost, and the partition is fenced
            got += [message.payLoadData for message in (await held.fetch()).messages]
            held.confirm()
        await held.release()
        held = await partitions.acquire(sender.route.partitions["1:0"])
        while len(set(got)) < len(bodies):
            pack = await held.fetch()
            if cutter.late:
                assert GetMessageResponseB2C.FromString(await cutter.deliver()).errCode == codes.DUPLICATE_PARTITION
            got += [message.payLoadData for message in pack.messages]
            held.confirm()
        await held.release()
    assert list(dict.fromkeys(got)) == bodies
