"""A scripted broker that stores entries, with deduplication, cursors and permits, and that can cut connections."""

from collections import defaultdict
from dataclasses import dataclass, field

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import decode_entry
from mqbridge.pulsar.wire.frame import Frame, encode_frame_prefix
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.pulsar.client.broker import Broker, Link

LEDGER = 7


@dataclass
class Cursor:
    """A subscription: all entries before `mark` are acknowledged, and those in `acked`."""

    mark: int = 0
    acked: set[int] = field(default_factory=set)

    def acknowledge(self, entry: int) -> None:
        if entry >= self.mark:
            self.acked.add(entry)
        while self.mark in self.acked:
            self.acked.discard(self.mark)
            self.mark += 1


@dataclass
class Reader:
    """A subscribed consumer."""

    link: Link
    id: int
    topic: str
    cursor: Cursor
    next: int = 0
    permits: int = 0
    again: list[int] = field(default_factory=list)
    shared: bool = False


class Store(Broker):
    """Responds as a deduplicating broker does. The connection is cut at the command number `cut_at` from a client."""

    def __init__(self, *, deduplicate: bool = True, max_message_size: int = 1 << 20) -> None:
        super().__init__()
        self.deduplicate, self.max_message_size = deduplicate, max_message_size
        self.checks_producers = True
        """False to accept entries as other producers made them."""
        self.logs: defaultdict[str, list[bytes]] = defaultdict(list)
        self.cursors: defaultdict[tuple[str, str], Cursor] = defaultdict(Cursor)
        self.highest: dict[tuple[str, str], int] = {}
        self.names: dict[tuple[Link, int], tuple[str, str]] = {}
        self.readers: list[Reader] = []
        self.schemas: defaultdict[str, list[pb.Schema]] = defaultdict(list)
        """Topic -> registered schemas, in the order of their versions."""
        self.seen = 0
        self.cut_at = 0
        self.answer_first = False
        self.drop_answers = False
        self.on |= {
            BaseCommand.CONNECT: self._welcome,
            BaseCommand.PRODUCER: self._on_producer,
            BaseCommand.SEND: self._on_send,
            BaseCommand.SUBSCRIBE: self._on_subscribe,
            BaseCommand.FLOW: self._on_flow,
            BaseCommand.ACK: self._on_ack,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._on_redeliver,
            BaseCommand.CLOSE_CONSUMER: self._on_close_consumer,
            BaseCommand.GET_LAST_MESSAGE_ID: self._on_last,
            BaseCommand.SEEK: self._on_seek,
            BaseCommand.GET_SCHEMA: self._on_schema,
            BaseCommand.GET_OR_CREATE_SCHEMA: self._on_new_schema,
        }

    def receive(self, link: Link, frame: Frame) -> None:
        if not link.open:
            return
        self.seen += 1
        if self.seen != self.cut_at:
            super().receive(link, frame)
        elif self.answer_first:  # the request is carried out, but its response is lost
            self.drop_answers = True
            super().receive(link, frame)
            self.drop_answers = False
            link.drop()
        else:
            link.drop()

    def _send(self, link: Link, **command: object) -> None:
        if not self.drop_answers:
            link.send(**command)

    def _welcome(self, link: Link, _: Frame) -> None:
        connected = pb.CommandConnected(server_version="store", protocol_version=21, max_message_size=self.max_message_size)
        self._send(link, connected=connected)

    # --- producers --------------------------------------------------------------------------------------------------

    def _on_producer(self, link: Link, frame: Frame) -> None:
        asked = frame.command.producer
        name = asked.producer_name or "made-up"
        self.names[link, asked.producer_id] = (asked.topic, name)
        last = self.highest.get((asked.topic, name), -1)
        answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=name, last_sequence_id=last)
        self._send(link, producer_success=answer)

    def _on_send(self, link: Link, frame: Frame) -> None:
        asked = frame.command.send
        topic, name = key = self.names[link, asked.producer_id]
        log, metadata = self.logs[topic], decode_entry(frame.data, frame.entry_offset).metadata
        if self.checks_producers:
            assert (metadata.producer_name, metadata.sequence_id) == (name, asked.sequence_id)
        last_chunk = not asked.is_chunk or metadata.chunk_id == metadata.num_chunks_from_msg - 1
        duplicate = self.deduplicate and last_chunk and asked.sequence_id <= self.highest.get(key, -1)
        message_id = ids.message_id(-1, -1) if duplicate else ids.message_id(LEDGER, len(log))
        if not duplicate:
            log.append(frame.data[frame.entry_offset :])
            if last_chunk:
                self.highest[key] = max(asked.sequence_id, asked.highest_sequence_id)
        receipt = pb.CommandSendReceipt(producer_id=asked.producer_id, sequence_id=asked.sequence_id, message_id=message_id)
        self._send(link, send_receipt=receipt)
        self._dispatch()

    # --- consumers --------------------------------------------------------------------------------------------------

    def _on_subscribe(self, link: Link, frame: Frame) -> None:
        asked = frame.command.subscribe
        cursor = self.cursors[asked.topic, asked.subscription]
        start = cursor.mark if asked.durable else max(0, ids.entry_id(asked.start_message_id)[1])
        shared = asked.subType == pb.CommandSubscribe.Shared
        self.readers.append(Reader(link, asked.consumer_id, asked.topic, cursor, start, shared=shared))
        self._send(link, success=pb.CommandSuccess(request_id=asked.request_id))

    def _reader(self, link: Link, consumer_id: int) -> Reader:
        (found,) = [each for each in self.readers if each.link is link and each.id == consumer_id]
        return found

    def _on_flow(self, link: Link, frame: Frame) -> None:
        asked = frame.command.flow
        self._reader(link, asked.consumer_id).permits += asked.messagePermits
        self._dispatch()

    def _dispatch(self) -> None:
        for reader in self.readers:
            log = self.logs[reader.topic]
            while reader.link.open and reader.permits > 0 and (reader.again or reader.next < len(log)):
                entry = reader.again.pop(0) if reader.again else reader.next
                reader.next = max(reader.next, entry + 1)
                if entry >= reader.cursor.mark and entry not in reader.cursor.acked:
                    self._deliver(reader, entry, log[entry])

    def _deliver(self, reader: Reader, entry: int, data: bytes) -> None:
        reader.permits -= decode_entry(data).count
        message = pb.CommandMessage(consumer_id=reader.id, message_id=ids.message_id(LEDGER, entry))
        command = BaseCommand(type=BaseCommand.MESSAGE, message=message)
        if not self.drop_answers:
            reader.link.loop.call_soon(reader.link.send_bytes, encode_frame_prefix(command, len(data)) + data)

    def _on_ack(self, link: Link, frame: Frame) -> None:
        asked = frame.command.ack
        cursor = self._reader(link, asked.consumer_id).cursor
        for message_id in asked.message_id:
            if asked.ack_type == pb.CommandAck.Cumulative:
                for entry in range(cursor.mark, ids.entry_id(message_id)[1] + 1):
                    cursor.acknowledge(entry)
            elif not message_id.ack_set:
                cursor.acknowledge(ids.entry_id(message_id)[1])
        if asked.HasField("request_id"):
            self._send(link, ackResponse=pb.CommandAckResponse(consumer_id=asked.consumer_id, request_id=asked.request_id))

    def _on_last(self, link: Link, frame: Frame) -> None:
        asked = frame.command.getLastMessageId
        reader = self._reader(link, asked.consumer_id)
        answer = pb.CommandGetLastMessageIdResponse(
            request_id=asked.request_id,
            last_message_id=ids.message_id(LEDGER, len(self.logs[reader.topic]) - 1),
            consumer_mark_delete_position=ids.message_id(LEDGER, reader.cursor.mark - 1),
        )
        self._send(link, getLastMessageIdResponse=answer)

    def _on_seek(self, link: Link, frame: Frame) -> None:
        """Move the cursor and forget individual acknowledgements, as brokers do."""
        asked = frame.command.seek
        reader = self._reader(link, asked.consumer_id)
        reader.cursor.mark = reader.next = max(0, ids.entry_id(asked.message_id)[1])
        reader.cursor.acked.clear()
        self._send(link, success=pb.CommandSuccess(request_id=asked.request_id))
        self._dispatch()

    def _on_redeliver(self, link: Link, frame: Frame) -> None:
        asked = frame.command.redeliverUnacknowledgedMessages
        reader = self._reader(link, asked.consumer_id)
        if reader.shared:
            reader.again += sorted(ids.entry_id(message_id)[1] for message_id in asked.message_ids)
        else:
            reader.next = reader.cursor.mark
        self._dispatch()

    # --- schemas ----------------------------------------------------------------------------------------------------

    def _on_new_schema(self, link: Link, frame: Frame) -> None:
        asked = frame.command.getOrCreateSchema
        known = self.schemas[asked.topic]
        if asked.schema not in known:
            known.append(asked.schema)
        answer = pb.CommandGetOrCreateSchemaResponse(
            request_id=asked.request_id, schema_version=known.index(asked.schema).to_bytes(8, "big")
        )
        self._send(link, getOrCreateSchemaResponse=answer)

    def _on_schema(self, link: Link, frame: Frame) -> None:
        asked = frame.command.getSchema
        newest = len(self.schemas[asked.topic]) - 1
        answer = pb.CommandGetSchemaResponse(
            request_id=asked.request_id, schema=self.schemas[asked.topic][newest], schema_version=newest.to_bytes(8, "big")
        )
        self._send(link, getSchemaResponse=answer)

    def _on_close_consumer(self, link: Link, frame: Frame) -> None:
        asked = frame.command.close_consumer
        self.readers = [each for each in self.readers if each.link is not link or each.id != asked.consumer_id]
        self._send(link, success=pb.CommandSuccess(request_id=asked.request_id))
