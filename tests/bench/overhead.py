"""Benchmark of the overhead of a batch: CPU microseconds per batch in the route, the inbound and the outbound of each system.

Route: receive, ticket, send, receipt and acknowledgement in `LaneDelivery`, between a lane and an outbound that do nothing.
In: pulls, frames, queues and acknowledgements of the client. A fake server in this process has prepared the responses.
Out: requests and receipts of the client. The messages are encoded beforehand.
There are no sockets, and the time spent in the fake server is subtracted. A batch has 32 messages of 1 kB, which is the default
maximum of a pull from a RocketMQ broker.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC
from types import SimpleNamespace
from typing import Any
from unittest import mock

import uvloop

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.budget import Budget
from mqbridge.net.endpoint import Endpoint
from mqbridge.pulsar.adapter import outbound as pulsar_outbound
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.connection import handshake as pulsar_handshake
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.mapping.request import EncodedEntry
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import encode_entry_prefix
from mqbridge.pulsar.wire.frame import encode_command, encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.rocketmq.adapter import outbound as rocketmq_outbound
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.connection import connection as rocketmq_connections
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.budget import PullBudget
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_request import Puller
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner
from mqbridge.tubemq.adapter import outbound as tubemq_outbound
from mqbridge.tubemq.adapter.inbound import TubeMQLane
from mqbridge.tubemq.adapter.outbound import TubeMQOutbound
from mqbridge.tubemq.client.connection import server_connection as tubemq_connection
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender
from mqbridge.tubemq.wire import frame as tube_frame
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, GetMessageRequestC2B, SendMessageResponseB2P
from mqbridge.wire.cutter import FrameCutter
from tests.pulsar.client.broker import Broker as PulsarBroker
from tests.pulsar.client.broker import Link as PulsarLink
from tests.pulsar.client.broker import scripted_client as pulsar_client
from tests.rocketmq.client.broker import TOPIC, Cluster
from tests.rocketmq.client.broker import Link as RocketMQLink
from tests.rocketmq.client.broker import scripted_client as rocketmq_client
from tests.tubemq.client.fakes import REF, Context, registered
from tests.tubemq.client.fakes import pack as tubemq_pack

MESSAGES = 32
PARTITIONS = 8
BATCHES = 1600
"""Of one run, all partitions together."""
RUNS = 20
PAYLOAD = b"x" * 1000


class Stopwatch:
    """What the peer takes, which is not the gateway's."""

    def __init__(self) -> None:
        self.ns = 0

    def __enter__(self) -> None:
        self._began = time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        self.ns += time.thread_time_ns() - self._began


PEER = Stopwatch()


async def measured(work: Callable[[], Awaitable[int]]) -> float:
    """us per batch of the fastest run; `work` says how many batches it had."""
    found = []
    for _ in range(RUNS):
        PEER.ns, began = 0, time.thread_time_ns()
        batches = await work()
        found.append((time.thread_time_ns() - began - PEER.ns) / batches / 1000)
    return min(found)


# --- the route --------------------------------------------------------------------------------------------------------


class FakeLane:
    """Has BATCHES ready batches."""

    def __init__(self, partition: Partition, count: int) -> None:
        self.partition, self.revoked, self.left = partition, asyncio.Event(), count
        self.acknowledged = 0
        self.done = asyncio.Event()
        self._total = count

    async def receive(self) -> Batch:
        if not self.left:
            await asyncio.Event().wait()
        self.left -= 1
        return native_batch(self.partition, self._total - self.left)

    def acknowledge(self, batch: Batch, indexes: Any = None, receipt: Any = None) -> None:
        self.acknowledged += 1
        if self.acknowledged == self._total:
            self.done.set()

    def reject(self, batch: Batch, failures: Any = (), delay_s: float = 0.0) -> None:
        raise AssertionError

    async def seek(self, position: Any) -> None:
        raise AssertionError

    async def release(self, deadline: float | None = None) -> None:
        pass


def native_batch(partition: Partition, number: int) -> Batch:
    """As an adapter makes it: not decoded, nothing mentioned."""
    return Batch(
        partition,
        lambda: MESSAGES_OF_A_BATCH,
        count=MESSAGES,
        size=MESSAGES * len(PAYLOAD),
        first=(number,),
        next=(number + MESSAGES,),
        format="bench",
        may_contain=lambda _: False,
        published_ms=1,
    )


MESSAGES_OF_A_BATCH = [Message(PAYLOAD, position=(number,)) for number in range(MESSAGES)]


class FakeOutbound:
    """Responds at once, or in the next iteration of the event loop."""

    formats = ("bench",)
    partitions = PARTITIONS

    def __init__(self, *, at_once: bool) -> None:
        self._at_once, self._loop = at_once, asyncio.get_running_loop()

    def send(self, partition: int, share: Share) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = self._loop.create_future()
        if self._at_once:
            future.set_result(Receipt())
        else:
            self._loop.call_soon(future.set_result, Receipt())
        return future

    def withdraw(self, sends: Any) -> None:
        pass


async def route(*, at_once: bool) -> float:
    """us per batch of `LaneDelivery`."""

    async def work() -> int:
        settings = LaneSettings(Budget(64 << 20), Counters())
        outbound: Any = FakeOutbound(at_once=at_once)
        guard = LoopGuard("there", ["t"], 8, lambda _: None)
        target = Target("t", outbound, Partitioner(PartitionRule(by="modulo"), outbound), guard=guard)
        lanes = [FakeLane(Partition("c", "t", str(index), index), BATCHES // PARTITIONS) for index in range(PARTITIONS)]
        deliveries = [LaneDelivery(lane, [target], settings) for lane in lanes]  # type: ignore[arg-type]
        tasks = [asyncio.ensure_future(delivery.run()) for delivery in deliveries]
        for lane in lanes:
            await lane.done.wait()
        for delivery in deliveries:
            delivery.stop()
        await asyncio.gather(*tasks)
        return BATCHES

    return await measured(work)


async def sent(outbound: Any, share: Callable[[int], Share]) -> int:
    """BATCHES sends, one at a time per partition."""

    async def one(partition: int) -> None:
        for _ in range(BATCHES // PARTITIONS):
            receipt = await outbound.send(partition, share(partition))
            assert not receipt.failures

    await asyncio.gather(*map(one, range(PARTITIONS)))
    return BATCHES


async def received(lanes: list[Any]) -> int:
    """BATCHES x MESSAGES messages taken from these lanes and acknowledged."""

    async def one(lane: Any) -> None:
        count = 0
        while count < BATCHES // len(lanes) * MESSAGES:
            batch = await lane.receive()
            count += batch.count
            lane.acknowledge(batch)

    await asyncio.gather(*map(one, lanes))
    return BATCHES


def connected(endpoint: Endpoint, transport: asyncio.Transport, link: Any) -> Endpoint:
    """The endpoint of a connection that is made."""
    endpoint.link = link
    endpoint.connection_made(transport)
    return endpoint


# --- RocketMQ ---------------------------------------------------------------------------------------------------------


class QuickRocketMQ(RocketMQLink):
    """Answers sends and pulls by texts that are ready but for a few numbers."""

    pulled = b""

    def write(self, data: Any) -> None:
        with PEER:
            super().write(data)

    def received(self, frame: bytes) -> None:
        data = self._answer(frame)
        if data is None:
            super().received(frame)
        else:
            self.loop.call_soon(self.endpoint.data_received, data)

    def _answer(self, frame: bytes) -> bytes | None:
        header = frame[8 : 8 + (int.from_bytes(frame[4:8]) & 0xFFFFFF)]
        if header.startswith((b'{"code":11,', b'{"code":361,')):
            queue, offset = _field(header, b'queueId":"'), int(_field(header, b'queueOffset":"'))
            remark, body = b'"remark":"FOUND",', _records(offset)
            ext = b'"nextBeginOffset":"%d","maxOffset":"99999999","minOffset":"0","suggestWhichBrokerId":"0",' % (
                offset + MESSAGES
            )
            ext += b'"topicSysFlag":"0","groupSysFlag":"0"'
        elif header.startswith(b'{"code":320,'):
            queue, remark, body = _field(header, b'"e":"'), b"", b""
            ext = b'"queueId":"%s","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%s","queueOffset":"17"' % (queue, IDS)
        else:
            return None
        opaque = _field(header, b'"opaque":', b",")
        answer = (
            b'{"code":0,"extFields":{%s},"flag":1,"language":"JAVA","opaque":%s,%s"serializeTypeCurrentRPC":"JSON","version":475}'
            % (
                ext,
                opaque,
                remark,
            )
        )
        return (4 + len(answer) + len(body)).to_bytes(4) + len(answer).to_bytes(4) + answer + body


IDS = b",".join(b"7F00000100002A9F%016X" % number for number in range(MESSAGES))


def _field(header: bytes, name: bytes, end: bytes = b'"') -> bytes:
    at = header.index(name) + len(name)
    return header[at : header.index(end, at)]


_made: dict[int, bytes] = {}


def _records(offset: int) -> bytes:
    """The same bytes for every offset, but a fresh object; only the first record's offset is looked at here."""
    if 0 not in _made:
        _made[0] = b"".join(
            encode_record(Record(TOPIC, PAYLOAD, b"a\x01b\x02c\x01d\x02", queue_offset=number, born_timestamp=1))
            for number in range(MESSAGES)
        )
    body = bytearray(_made[0])
    body[20:28] = offset.to_bytes(8)
    return bytes(body)


class QuickCluster(Cluster):
    """With quick links."""

    async def dial(self, host: str, port: int, make: Callable[[], Endpoint], **more: Any) -> Endpoint:
        endpoint = make()
        self.links.append(QuickRocketMQ(self, f"{host}:{port}", endpoint))
        return connected(endpoint, self.links[-1], more["link"])


async def rocketmq_out() -> float:
    """us per batch into RocketMQ."""
    cluster = QuickCluster()
    cluster.topics[TOPIC] = {"broker-a": PARTITIONS}
    element = b"e" * (MESSAGES * 1100)
    with mock.patch.object(rocketmq_connections, "dial", cluster.dial):
        client = rocketmq_client()
        await client.connect()
        producer = client.producer("g", TOPIC)
        queues = await producer.queues()
        outbound = RocketMQOutbound(SimpleNamespace(), producer, OutboundSpec(TOPIC), queues, max_message_bytes=4 << 20)  # type: ignore[arg-type]
        out = make_rocketmq_request(element)
        with mock.patch.object(rocketmq_outbound, "encode", return_value=([out], [])):
            batches = batches_of(PARTITIONS)
            found = await measured(lambda: sent(outbound, lambda partition: Share(batches[partition])))
        await outbound.close()
        await client.close()
    return found


def make_rocketmq_request(body: bytes) -> Any:
    """What `encode` gives for a batch."""
    return SimpleNamespace(
        is_batch=True,
        body=body,
        count=MESSAGES,
        born=1,
        indexes=range(MESSAGES),
        delayed=False,
        properties=b"",
        flag=0,
        sys_flag=0,
    )


def batches_of(count: int) -> list[Batch]:
    """One per partition."""
    return [native_batch(Partition("c", "t", str(index), index), 0) for index in range(count)]


async def rocketmq_in() -> float:
    """us per pull of MESSAGES from RocketMQ, with joining them to batches and acknowledging."""
    cluster = QuickCluster()
    cluster.topics[TOPIC] = {"broker-a": PARTITIONS}
    with mock.patch.object(rocketmq_connections, "dial", cluster.dial):
        client = rocketmq_client()
        await client.connect()
        lanes, streams = [], []
        owner: Any = SimpleNamespace(
            budget=PullBudget(64 << 20),
            policies=None,
            commits_with_pulls=True,
            name="g",
            store=None,
            on_queue_ended=lambda _: None,
        )
        owner.budget.queues = PARTITIONS
        subscription = everything(TOPIC)
        spec = ConsumerSettings("g", (subscription,))
        for index in range(PARTITIONS):
            queue = Queue(TOPIC, "broker-a", index)
            puller = Puller(Brokers(client), spec, queue, subscription, 1)
            stream = AssignedQueue(owner, queue, subscription, puller)
            lanes.append(RocketMQLane(Partition("c", TOPIC, f"broker-a:{index}", index), stream))
            streams.append(stream)
            stream.begin(0, first_start=False)
        found = await measured(lambda: received(lanes))
        for stream in streams:
            stream._pulls.stop()
        await client.close()
    return found


# --- Pulsar -----------------------------------------------------------------------------------------------------------


class QuickPulsar(PulsarLink):
    """Answers sends, and credit by entries."""

    messages = MESSAGES
    """Of an entry that is delivered."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._entries: dict[int, Any] = {}
        self._stored = 0
        self._credit: dict[int, int] = {}
        self._pushing = False

    def write(self, data: Any) -> None:
        with PEER:
            super().write(data)

    def received(self, frame: bytes) -> None:
        kind = frame[9]
        data = None
        if kind == BaseCommand.SEND:
            sent = parse_frame(frame).command.send
            self._stored += 1
            receipt = pb.CommandSendReceipt(
                producer_id=sent.producer_id, sequence_id=sent.sequence_id, message_id=ids.message_id(7, self._stored)
            )
            data = encode_command(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt))
        elif kind == BaseCommand.FLOW:
            asked = parse_frame(frame).command.flow
            self._credit[asked.consumer_id] = self._credit.get(asked.consumer_id, 0) + asked.messagePermits
            if not self._pushing:
                self._pushing = True
                self.loop.call_soon(self._push)
        if data is not None:
            self.loop.call_soon(self.endpoint.data_received, data)
        elif kind not in (BaseCommand.FLOW, BaseCommand.ACK):
            super().received(frame)

    def _push(self) -> None:
        """As much as one read of a socket brings."""
        with PEER:
            pieces, size = [], 0
            while size < 1 << 16 and (owed := [key for key, credit in self._credit.items() if credit > 0]):
                for consumer in owed:
                    self._credit[consumer] -= self.messages
                    entry = next(self._entries.setdefault(consumer, itertools.count()))
                    pieces.append(_message(consumer, entry, single=self.messages == 1))
                    size += len(pieces[-1])
            data = b"".join(pieces)
            self._pushing = bool(owed)
            if owed:
                self.loop.call_soon(self._push)
        if data:
            self.endpoint.data_received(data)


_PULSAR_PAYLOAD = b"p" * (MESSAGES * 1100)
_PULSAR_METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=MESSAGES)
_PULSAR_STORED = encode_entry_prefix(_PULSAR_METADATA, _PULSAR_PAYLOAD) + _PULSAR_PAYLOAD
_SINGLE_METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key="key-17")
for _name in ("seq", "part", "name", "trace", "zone"):
    _SINGLE_METADATA.properties.add(key=_name, value="value of it")
_SINGLE_STORED = encode_entry_prefix(_SINGLE_METADATA, PAYLOAD) + PAYLOAD


def _message(consumer: int, entry: int, *, single: bool) -> bytes:
    stored = _SINGLE_STORED if single else _PULSAR_STORED
    message = pb.CommandMessage(consumer_id=consumer, message_id=ids.message_id(7, entry))
    message.message_id.partition = 3
    command = BaseCommand(type=BaseCommand.MESSAGE, message=message)
    return encode_frame_prefix(command, len(stored)) + stored


class QuickPulsarBroker(PulsarBroker):
    """With quick links."""

    async def dial(self, host: str, port: int, make: Callable[[], Endpoint], **more: Any) -> Endpoint:
        endpoint = make()
        self.links.append(QuickPulsar(self, host, endpoint))
        return connected(endpoint, self.links[-1], more["link"])


async def pulsar_out() -> float:
    """us per entry into Pulsar; the checksum of its 35 kB is part of it."""
    broker = QuickPulsarBroker()
    with mock.patch.object(pulsar_handshake, "dial", broker.dial):
        client = pulsar_client()
        targets = [Partition("c", f"target-{index}", "-1", index) for index in range(PARTITIONS)]
        topics = Topics(client, "c", "public/default")
        outbound = PulsarOutbound(None, client, topics, OutboundSpec("target"), targets, 1 << 20)  # type: ignore[arg-type]

        def encode(*_: Any) -> Any:
            metadata = MessageMetadata(num_messages_in_batch=MESSAGES, publish_time=1)
            return [EncodedEntry(metadata, _PULSAR_PAYLOAD, range(MESSAGES))], []

        with mock.patch.object(pulsar_outbound, "encode", encode):
            batches = batches_of(PARTITIONS)
            found = await measured(lambda: sent(outbound, lambda partition: Share(batches[partition])))
        await outbound.close()
        await client.close()
    return found


async def pulsar_in(*, messages: int = MESSAGES) -> float:
    """us per MESSAGES messages from Pulsar, in entries of so many; their checksums are part of it."""
    broker = QuickPulsarBroker()
    with mock.patch.object(QuickPulsar, "messages", messages), mock.patch.object(pulsar_handshake, "dial", broker.dial):
        client = pulsar_client()
        lanes, consumers = [], []
        for index in range(PARTITIONS):
            consumer = await client.consumer(f"persistent://public/default/t-{index}", Subscription("s", Types.Exclusive))
            consumers.append(consumer)
            lanes.append(PulsarLane(Partition("c", "t", str(index), index), consumer, 1 << 20, 1 << 20))
        found = await measured(lambda: received(lanes))
        for consumer in consumers:
            await consumer.close()
        await client.close()
    return found


# --- TubeMQ -----------------------------------------------------------------------------------------------------------


class QuickTubeMQ(asyncio.Transport):
    """Answers sends, and gets by packs."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint, self._cutter, self._loop = (
            endpoint,
            FrameCutter(tube_frame.FrameMeter().measure),
            asyncio.get_running_loop(),
        )
        self._answers: list[bytes] = []
        stored = SendMessageResponseB2P(success=True, errCode=200, errMsg="OK", messageId=1, appendTime=1, appendOffset=5)
        self._stored = rpc.encode_response(rpc.SEND, stored.SerializeToString())
        got = tubemq_pack(0, MESSAGES)
        for message in got.messages:
            message.payLoadData = PAYLOAD
        got.maxOffset = 1 << 40
        self._got, self._offsets = got, dict[int, int]()
        self._took = rpc.encode_response(rpc.PARTITION_REGISTER, registered().SerializeToString())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        with PEER:
            for frame in self._cutter.feed(bytes(data)):
                serial, payload = tube_frame.split_frame(frame)
                request = rpc.decode_request(payload) if len(frame) < 400 else None
                if request is None or request.method == rpc.SEND:
                    answer = self._stored
                elif request.method == rpc.GET:
                    partition = GetMessageRequestC2B.FromString(request.body).partitionId
                    self._got.currOffset = self._offsets.get(partition, 0)
                    self._offsets[partition] = self._got.currOffset + 28 * MESSAGES
                    answer = rpc.encode_response(rpc.GET, self._got.SerializeToString())
                else:
                    answer = self._took
                if not self._answers:
                    self._loop.call_soon(self._flush)
                self._answers.append(tube_frame.encode_frame(serial, answer))

    def writelines(self, pieces: Any) -> None:
        with PEER:
            data = b"".join(pieces)
        self.write(data)

    def _flush(self) -> None:
        data, self._answers = b"".join(self._answers), []
        self._endpoint.data_received(data)

    def abort(self) -> None:
        self._loop.call_soon(self._endpoint.connection_lost, None)

    close = abort


async def _dial_tubemq(host: str, port: int, make: Callable[[], Endpoint], **more: Any) -> Endpoint:
    endpoint = make()
    return connected(endpoint, QuickTubeMQ(endpoint), more["link"])


class EncodedShare:
    """What encoding a batch gives."""

    failures: tuple[tuple[int, str], ...] = ()

    def __getitem__(self, index: int) -> tuple[bytes, int, str, str]:
        return PAYLOAD, 1, "type", "202611230738"


async def tubemq_out(*, window: int) -> float:
    """us per MESSAGES messages into TubeMQ."""
    with mock.patch.object(tubemq_connection, "dial", _dial_tubemq):
        connection = ServerConnection("10.0.0.5", 8123)
        masters = SimpleNamespace(broker_auth=registered_authorization())
        names = [f"1:{index}" for index in range(PARTITIONS)]
        refs = {name: REF._replace(partition=index) for index, name in enumerate(names)}
        routes: Any = SimpleNamespace(masters=masters, client_id="c", host="10.0.0.9")
        connections: Any = SimpleNamespace(connectivity=connection._connectivity, connection_to=lambda *_: connection)
        topic_route: Any = SimpleNamespace(topic="demo", partitions=refs)
        sender = PartitionSender(routes, connections, topic_route, max_in_flight=window, max_elapsed_s=None, ordered=True)
        await connection.connect()
        outbound = TubeMQOutbound(sender, OutboundSpec("demo"), UTC, None)  # type: ignore[arg-type]
        with mock.patch.object(tubemq_outbound, "encode_share", return_value=EncodedShare()):
            batches = batches_of(PARTITIONS)
            found = await measured(lambda: sent(outbound, lambda partition: Share(batches[partition])))
        await outbound.close()
        await connection.close()
    return found


def registered_authorization() -> Any:
    """What requests prove."""
    return AuthorizedInfo(visitAuthorizedToken=77)


async def tubemq_in() -> float:
    """us per pack of MESSAGES from TubeMQ; parsing it is part of it."""
    with mock.patch.object(tubemq_connection, "dial", _dial_tubemq):
        connection = ServerConnection("10.0.0.5", 8123)
        lanes = []
        for index in range(PARTITIONS):
            context = Context(connection)  # type: ignore[arg-type]
            held = HeldPartition(context, REF._replace(partition=index))
            lanes.append(TubeMQLane(held, Partition("c", "demo", f"1:{index}", index), UTC))
        found = await measured(lambda: received(lanes))
        await connection.close()
    return found


STAGES: dict[str, Callable[[], Awaitable[float]]] = {
    "route, receipt at once": lambda: route(at_once=True),
    "route, receipt in the next loop iteration": lambda: route(at_once=False),
    "from RocketMQ": rocketmq_in,
    "into RocketMQ": rocketmq_out,
    "from Pulsar": pulsar_in,
    "from Pulsar, single messages": lambda: pulsar_in(messages=1),
    "into Pulsar": pulsar_out,
    "from TubeMQ": tubemq_in,
    "into TubeMQ, 1 in flight": lambda: tubemq_out(window=1),
    "into TubeMQ, 100 in flight": lambda: tubemq_out(window=100),
}


def measure(only: str = "") -> dict[str, float]:
    """us per batch by stage."""
    logging.disable(logging.WARNING)  # peers end in the middle of everything
    try:
        return {name: uvloop.run(work()) for name, work in STAGES.items() if only in name}
    finally:
        logging.disable(logging.NOTSET)


def chapter() -> str:
    """The table of docs/explanation/benchmarks.md."""
    lines = [
        "## Overhead",
        "",
        f"CPU time of the gateway for a batch of {MESSAGES} messages of 1 kB, in microseconds, without encoding, decoding",
        "and sockets. The total for a direction is the sum of three rows: `from` its source, the route, and `into` its",
        "target.",
        "",
        "| part | us per batch | us per message |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {name} | {us:.1f} | {us / MESSAGES:.2f} |" for name, us in measure().items())]) + "\n"


if __name__ == "__main__":
    for name, us in measure(*sys.argv[1:2]).items():
        print(f"{name:40} {us:8.1f} us per batch {us / MESSAGES:6.2f} us per message")
