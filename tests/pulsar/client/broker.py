"""A scripted broker without sockets: it parses the client's frames and responds by a table that each test can change."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import Unreachable
from mqbridge.net.endpoint import Endpoint
from mqbridge.pulsar.client.cluster_client import ClusterClient, Timing
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import encode_entry_prefix
from mqbridge.pulsar.wire.frame import Frame, FrameMeter, encode_command, encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.kit.conversation import ServerLink, in_turn, silent, until  # noqa: F401 - tests take the last three from here

Answer = Callable[["Link", Frame], None]
URL = "pulsar://broker:6650"


class Link(ServerLink):
    """The broker's end of one connection."""

    def __init__(self, broker: "Broker", address: str, endpoint: Endpoint) -> None:
        super().__init__(endpoint, FrameMeter(100 << 20).measure, peername=(address, 6650))
        self.broker, self.address = broker, address

    def received(self, frame: bytes) -> None:
        self.loop.call_soon(self.broker.receive, self, parse_frame(frame))

    def send(self, **command: Any) -> None:
        """Send a command, such as `link.send(success=pb.CommandSuccess(...))`."""
        ((name, body),) = command.items()
        number = BaseCommand.DESCRIPTOR.fields_by_name[name].number
        self.send_bytes(encode_command(BaseCommand(type=number, **{name: body})))

    def error(self, request_id: int, code: int, message: str = "no") -> None:
        self.send(error=pb.CommandError(request_id=request_id, error=code, message=message))

    def message(self, consumer_id: int, ledger: int, entry: int, payload: bytes, **more: Any) -> None:
        if self.broker.reported_cursor is None:
            self.broker.reported_cursor = ledger, entry - 1
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **more.pop("metadata", {}))
        prefix = encode_entry_prefix(metadata, payload)
        message = pb.CommandMessage(consumer_id=consumer_id, message_id=ids.message_id(ledger, entry), **more)
        command = BaseCommand(type=BaseCommand.MESSAGE, message=message)
        self.send_bytes(encode_frame_prefix(command, len(prefix) + len(payload)) + prefix + payload)


class Broker:
    """Responds as a healthy broker does, unless a test sets `on[type]`; `asked` has the received commands by type."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.asked: defaultdict[int, list[Any]] = defaultdict(list)
        self.unreachable: set[str] = set()
        self.entries = 0
        self.reported_cursor: EntryId | None = None
        """The last cumulative acknowledgement, or else the position before the first entry that was sent; None before it."""
        self.topics: dict[str, int | None] = {}
        """Number of partitions of topics that are not unpartitioned; None if a topic is missing."""
        self.on: dict[int, Answer] = {
            BaseCommand.CONNECT: self._connect,
            BaseCommand.LOOKUP: lambda link, frame: found(link, frame, URL),
            BaseCommand.PARTITIONED_METADATA: self.describe,
            BaseCommand.PRODUCER: self._producer,
            BaseCommand.SEND: self.store,
            BaseCommand.PING: lambda link, _: link.send(pong=pb.CommandPong()),
            BaseCommand.SUBSCRIBE: success,
            BaseCommand.CLOSE_PRODUCER: success,
            BaseCommand.CLOSE_CONSUMER: success,
            BaseCommand.SEEK: success,
            BaseCommand.ACK: self._ack,
            BaseCommand.GET_LAST_MESSAGE_ID: self._last,
        }

    @property
    def link(self) -> Link:
        """The newest connection."""
        return self.links[-1]

    async def dial(self, host: str, port: int, make: Callable[[], Endpoint], **more: Any) -> Endpoint:
        if host in self.unreachable:
            error = Unreachable(f"{host}:{port} is not there")
            more["link"].record_failure(error)
            raise error
        endpoint = make()
        endpoint.link = more["link"]
        link = Link(self, host, endpoint)
        self.links.append(link)
        endpoint.connection_made(link)
        return endpoint

    def receive(self, link: Link, frame: Frame) -> None:
        if link.open:
            ((_, body),) = [pair for pair in frame.command.ListFields() if pair[0].number != 1]
            self.asked[frame.type].append(body)
            if frame.type in self.on:
                self.on[frame.type](link, frame)

    def _connect(self, link: Link, _: Frame) -> None:
        link.send(connected=pb.CommandConnected(server_version="scripted", protocol_version=21, max_message_size=1 << 20))

    def _ack(self, _: Link, frame: Frame) -> None:
        asked = frame.command.ack
        if asked.ack_type == asked.Cumulative:
            acked = ids.entry_id(asked.message_id[0])
            self.reported_cursor = max(acked, self.reported_cursor or acked)

    def _last(self, link: Link, frame: Frame) -> None:
        ends_at(-1, -1, cursor=self.reported_cursor)(link, frame)

    def describe(self, link: Link, frame: Frame) -> None:
        """Respond with the number of partitions of a topic."""
        asked = frame.command.partitionMetadata
        response = pb.CommandPartitionedTopicMetadataResponse(request_id=asked.request_id)
        if (count := self.topics.get(asked.topic, 0)) is None:
            response.response, response.error, response.message = response.Failed, pb.TopicNotFound, "no"
        else:
            response.response, response.partitions = response.Success, count
        link.send(partitionMetadataResponse=response)

    def _producer(self, link: Link, frame: Frame) -> None:
        asked = frame.command.producer
        answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=asked.producer_name or "made-up")
        link.send(producer_success=answer)

    def store(self, link: Link, frame: Frame) -> None:
        asked = frame.command.send
        message_id = ids.message_id(1, self.entries)
        self.entries += 1
        receipt = pb.CommandSendReceipt(producer_id=asked.producer_id, sequence_id=asked.sequence_id, message_id=message_id)
        link.send(send_receipt=receipt)


def success(link: Link, frame: Frame) -> None:
    ((_, body),) = [pair for pair in frame.command.ListFields() if pair[0].number != 1]
    link.send(success=pb.CommandSuccess(request_id=body.request_id))


def ends_at(*last: int, cursor: tuple[int, int] | None = None) -> Answer:
    """Return a response to GET_LAST_MESSAGE_ID with this last entry, and with the subscription's cursor if it is given."""

    def answer(link: Link, frame: Frame) -> None:
        body = pb.CommandGetLastMessageIdResponse(
            request_id=frame.command.getLastMessageId.request_id,
            last_message_id=ids.message_id(*last),
            consumer_mark_delete_position=None if cursor is None else ids.message_id(*cursor),
        )
        link.send(getLastMessageIdResponse=body)

    return answer


def found(link: Link, frame: Frame, url: str, **more: Any) -> None:
    """Respond to a lookup with the URL of the topic's owner."""
    answer = pb.CommandLookupTopicResponse(
        request_id=frame.command.lookupTopic.request_id,
        **{"response": pb.CommandLookupTopicResponse.Connect, "brokerServiceUrl": url, **more},
    )
    link.send(lookupTopicResponse=answer)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(handshake, "dial", broker.dial)
    return broker


def scripted_client(url: str = URL, **timing: float) -> ClusterClient:
    return ClusterClient(parse_service_url(url, tls=False), timing=Timing(**{"operation": 3.0, "request": 2.0, **timing}))
