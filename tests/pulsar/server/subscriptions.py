"""A subscription over a source whose entries a test decides, with consumers whose connections record what they get."""

from collections.abc import Awaitable
from typing import Any

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.message import Batch, Message, Unit
from mqbridge.pulsar.mapping.unit_format import FORMAT
from mqbridge.pulsar.server.consumer import ServedConsumer
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.server.subscription import ServedSubscription
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.frame import FrameMeter, parse_frame
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.wire.cutter import FrameCutter
from tests.listener.feeds import KEY
from tests.listener.scripted_source import PARTITION, ScriptedSource

KEYS = 5
MESSAGE_IDS = MessageIds(OffsetNumbering())


def key_of(number: int) -> str:
    """Return the key of the unit with this number."""
    return f"key-{number % KEYS}"


class EntrySource(ScriptedSource):
    """A scripted source whose units are entries with keys."""

    def __init__(self, *, batch_units: int = 3) -> None:
        super().__init__(batch_units=batch_units)
        self.defects: set[int] = set()
        """Numbers of messages that cannot be read; they have no units."""

    def resume(self) -> "EntrySource":
        other = EntrySource(batch_units=self._batch_units)
        other.sizes, other.deleted_before, other.defects = self.sizes, self.deleted_before, self.defects
        other.committed = other.next = self.committed
        return other

    def _batch(self) -> Batch | None:
        batch = super()._batch()
        if batch is None:
            return None
        messages = [self._message(position[0]) for position in (message.position for message in batch.messages)]
        units = None if not batch.has_units else [_entry(unit) for unit in batch.units or ()]
        return Batch(
            PARTITION,
            messages,
            count=batch.count,
            size=batch.size,
            first=batch.first,
            next=batch.next,
            format="messages" if units is None else FORMAT,
            units=None if units is None else lambda: units,
        )

    def _message(self, number: int) -> Message:
        defect = "damaged" if number in self.defects else None
        return Message(b"%d" % number, key=key_of(number), position=(number,), defect=defect)


def _entry(unit: Unit) -> Unit:
    (number,) = unit.position
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=key_of(number))
    if unit.message_count > 1:
        metadata.num_messages_in_batch = unit.message_count
    return unit._replace(data=stored_entry(metadata, unit.data))


class RecordingLink:
    """The connection of a consumer; `commands` are those that it was sent."""

    def __init__(self, peer: str = "client:1") -> None:
        self.peer, self.pending_sends, self.is_writable = peer, 0, True
        self.commands: list[BaseCommand] = []
        self._cutter = FrameCutter(FrameMeter().measure)

    def send(self, *pieces: bytes) -> None:
        self.commands += [parse_frame(each).command for each in self._cutter.feed(b"".join(pieces))]

    def on_answered(self) -> None: ...

    async def is_alive(self) -> bool:
        return True

    def take(self) -> list[BaseCommand]:
        """Return the commands that have come since the last call."""
        found, self.commands = self.commands, []
        return found


def make_subscription(
    source: EntrySource, open_dead_letters: "Awaitable[Any] | Any" = None, *, span: int = 10_000
) -> ServedSubscription:
    feed = Feed(KEY, FORMAT, OffsetNumbering(), None, FeedLimits(UnacknowledgedBytes(1 << 20), span))
    feed.attach(source)
    return ServedSubscription(
        "s", "persistent://public/default/t", -1, feed, MESSAGE_IDS, is_durable=True, open_dead_letters=open_dead_letters
    )


def make_consumer(number: int, link: RecordingLink | None = None, **fields: Any) -> ServedConsumer:
    values: dict[str, Any] = {"partition": -1, "priority": 0, "epoch": None}
    link = RecordingLink(f"client:{number}") if link is None else link
    return ServedConsumer(link, number, f"consumer-{number}", MESSAGE_IDS, **(values | fields))


def delivered(commands: list[BaseCommand]) -> list[int]:
    """Return the numbers of the units that were delivered with these commands."""
    return [each.message.message_id.entryId for each in commands if each.type == BaseCommand.MESSAGE]


def message_id(number: int, ack_set: tuple[int, ...] = ()) -> Any:
    return ids.message_id(1, number, ack_set)
