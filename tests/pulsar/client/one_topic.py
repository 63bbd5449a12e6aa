"""A model of a broker with one topic and one subscription. It checks that every entry is delivered before it is acknowledged."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.pulsar.client.broker import Broker, Link, found, success

LATE = 3
"""Maximum number of entries that the broker still sends for a registration that has ended."""
RESPONSE_S = 0.5
"""Time until the response to UNSUBSCRIBE: less than a request may take."""


@dataclass
class Registration:
    """The broker's record of the consumer. Entries in `again` are redelivered before the entry `next`."""

    link: Link
    id: int
    epoch: int | None
    begin: int
    next: int
    permits: int = 0
    again: list[int] = field(default_factory=list)


class OneTopic(Broker):
    """Entries are numbered from 0; `cursor` is the last one that is acknowledged with all before it. Each has `batch` messages.

    `ledgers` has the id of each ledger and the number of its first entry, also of deleted ones; `first` is the first entry that
    is not deleted. `parts` has the masks of the unacknowledged messages of partly acknowledged entries. Each list
    in `chunked` has the entries of one chunked message, also those that do not exist: its first or last chunk may be missing.

    `owed` are those that the application must see before they are acknowledged, and sooner or later. Deliveries are made when the
    test says so, and only against credit.
    """

    def __init__(self, *, reads: bool, failover: bool, persistent: bool, batch: int = 1) -> None:
        super().__init__()
        self.batch, self.parts = batch, dict[int, int]()
        self.ledgers, self.first = [(99, 0)], 0
        self.chunked: list[list[int]] = []
        self.receipt = "sent"
        """The next receipt of an acknowledgement: "sent", "lost", "refused", or "cut" with the connection."""
        self.refusals = 0
        """Number of SUBSCRIBE commands that fail."""
        self.holds_close = False
        self.held_close: list[tuple[Link, Frame]] = []
        self.reads, self.failover, self.persistent = reads, failover, persistent
        self.sizes, self.cursor = [1] * 8, -1
        self.stored_cursor = -1
        """The cursor of the last seek or reset: a killed broker keeps it, and may forget later acknowledgements."""
        self.acked: set[int] = set()
        self.owed: set[tuple[int, int]] = set()
        self.seen_latest = False
        self.active = False
        self.registration: Registration | None = None
        self.late: list[tuple[Link, int | None, int]] = []
        self.holds_answers = False
        self.held: list[tuple[Link, Frame]] = []
        self.seek_fails = self.unsubscribe_fails = ""
        self.deleted = False
        """True once the subscription was deleted."""
        self.url = "pulsar://broker:6650"
        self.on |= {
            BaseCommand.LOOKUP: lambda link, frame: found(link, frame, self.url),
            BaseCommand.SUBSCRIBE: self._subscribe,
            BaseCommand.CLOSE_CONSUMER: self._close,
            BaseCommand.FLOW: self._flow,
            BaseCommand.ACK: self._ack,
            BaseCommand.SEEK: self._seek,
            BaseCommand.UNSUBSCRIBE: self._unsubscribe,
            BaseCommand.GET_LAST_MESSAGE_ID: self._last,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._redeliver,
        }

    @property
    def length(self) -> int:
        return len(self.sizes)

    def messages(self, entries: Iterable[int], mask: int = -1) -> set[tuple[int, int]]:
        """Return the messages of these entries whose bits are 1 in the mask."""
        return {(entry, index) for entry in entries for index in range(self.batch) if mask >> index & 1}

    def position(self, entry: int) -> EntryId:
        """Return the id of an entry; for -1, the position before the first one."""
        ledger, first = max((each for each in self.ledgers if each[1] <= entry), default=self.ledgers[0])
        return ledger, entry - first

    def number(self, position: EntryId) -> int:
        """Return the number of the entry at this position; 0 for an earlier one, the length for a later one."""
        for ledger, first in self.ledgers:
            if ledger == position[0]:
                return first + position[1]
        return self.length if position > self.ledgers[-1] else 0

    def begin_ledger(self) -> None:
        """Begin a new ledger, unless the last one is empty."""
        if self.ledgers[-1][1] < self.length:
            self.ledgers.append((self.ledgers[-1][0] + 1, self.length))

    def trim(self) -> None:
        """Delete all ledgers but the last one, read or not, as a quota or a short retention does. Cursors move behind them.

        What the broker has read for a consumer before may still be sent.
        """
        self.first = self.ledgers[-1][1]
        self.owed = {each for each in self.owed if each[0] >= self.first}
        self.cursor, self.stored_cursor = max(self.cursor, self.first - 1), max(self.stored_cursor, self.first - 1)
        self.acked = {entry for entry in self.acked if entry > self.cursor}
        self.parts = {entry: mask for entry, mask in self.parts.items() if entry > self.cursor}
        if (known := self.registration) is not None:
            known.next = max(known.next, self.first)
            known.again = [entry for entry in known.again if entry >= self.first]
        self._advance()

    def live(self, link: Link | None = None) -> Registration | None:
        """Return the registration if its connection is open, and if it is `link` when `link` is given."""
        known = self.registration
        return known if known is not None and known.link.open and link in (None, known.link) else None

    # --- registrations ----------------------------------------------------------------------------------------------

    def _subscribe(self, link: Link, frame: Frame) -> None:
        asked = frame.command.subscribe
        assert not self.deleted, "this would create the subscription again"
        if self.refusals:
            self.refusals -= 1
            link.error(asked.request_id, pb.ServiceNotReady)
            return
        if self.live(link) is None:  # else it continues with the consumer that has this id
            begin = self.cursor + 1
            if self.reads:
                start = ids.entry_id(asked.start_message_id)
                begin = max(self.first, self.number(start))
                if start == ids.LATEST:
                    assert not self.seen_latest, "LATEST counts once"
                    self.seen_latest, begin = True, self.length
            epoch = asked.consumer_epoch if asked.HasField("consumer_epoch") else None
            self.registration = Registration(link, asked.consumer_id, epoch, begin, begin)
        if self.holds_answers:
            self.holds_answers = False
            self.held.append((link, frame))
        else:
            self._subscribed(link, frame)

    def _subscribed(self, link: Link, frame: Frame) -> None:
        asked = frame.command.subscribe
        link.send(success=pb.CommandSuccess(request_id=asked.request_id))
        if self.failover:
            link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=asked.consumer_id, is_active=self.active))

    def answer_held(self) -> None:
        """Send the responses that were held back."""
        held_close, self.held_close = self.held_close, []
        for link, frame in held_close:
            success(link, frame)
        held, self.held = self.held, []
        for link, frame in held:
            self._subscribed(link, frame)

    def forget_registration(self) -> None:
        """End the registration; entries that were read for it may still be sent."""
        known, self.registration = self.registration, None
        if known is not None and known.link.open and self.persistent:
            self.late += [(known.link, known.epoch, entry) for entry in range(known.next, min(known.next + LATE, self.length))]
        if not self.persistent:
            self.owed.clear()
            self.cursor = self.cursor if known is None else known.next - 1

    def _close(self, link: Link, frame: Frame) -> None:
        if self.live(link) is not None:
            self.forget_registration()
        if self.holds_close:
            self.holds_close = False
            self.held_close.append((link, frame))
        else:
            success(link, frame)

    def close_consumer(self) -> None:
        """Close the consumer, as a broker does when the topic is unloaded."""
        known = self.live()
        self.forget_registration()
        if known is not None:
            known.link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=known.id, request_id=ids.NO_REQUEST))

    def _unsubscribe(self, link: Link, frame: Frame) -> None:
        """Delete the subscription, unless `unsubscribe_fails` is set: "refused", "closed" (and refused), or "lost".

        The response comes later than the command that closes the consumer.
        """
        fails, self.unsubscribe_fails = self.unsubscribe_fails, ""
        self.deleted = not fails
        if fails == "lost":
            link.drop()
            self.forget_registration()
            return
        if fails != "refused":
            self.close_consumer()
        if fails:
            link.loop.call_later(RESPONSE_S, link.error, frame.command.unsubscribe.request_id, pb.MetadataError)
        else:
            link.loop.call_later(RESPONSE_S, success, link, frame)

    def say_active(self, active: bool) -> None:
        self.active = active
        known = self.live()
        if known is not None:
            known.next, known.again = self.cursor + 1, []
            known.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=known.id, is_active=active))

    def migrate(self, *, closes: bool, by: int = -10) -> None:
        """Migrate the topic to another cluster with other ids. The old one closes the consumer, or else its connection."""
        known = self.live()
        self.cursor = self.stored_cursor = -1
        self.ledgers, self.acked, self.parts = [(self.ledgers[0][0] + by, 0)], set(), {}
        self.first = 0
        self.owed = self.messages(range(self.length))
        self.url = "pulsar://green:6650"
        if known is not None:
            migrated = pb.CommandTopicMigrated(
                resource_id=known.id, resource_type=pb.CommandTopicMigrated.Consumer, brokerServiceUrl=self.url
            )
            known.link.send(topicMigrated=migrated)
        if closes:
            self.close_consumer()
        else:
            self.link.drop()
            self.forget_registration()
        self.late.clear()  # a cluster that has blocked the topic sends nothing more of it

    # --- deliveries -------------------------------------------------------------------------------------------------

    def _flow(self, link: Link, frame: Frame) -> None:
        if (known := self.live(link)) is not None:
            known.permits += frame.command.flow.messagePermits

    def deliver(self, count: int) -> int:
        """Send up to `count` entries while there are permits; return the number sent."""
        sent = 0
        while sent < count and (known := self.live()) is not None and known.permits > 0 and (self.active or not self.failover):
            if known.again:
                entry = known.again.pop(0)
            elif known.next < self.length:
                entry = known.next
                known.next += 1
            else:
                break
            if not self.reads and (entry <= self.cursor or entry in self.acked):
                continue
            known.permits -= self.parts.get(entry, (1 << self.batch) - 1).bit_count()
            sent += 1
            if not self.persistent:
                self.owed |= self.messages([entry])
            self.send_entry(known.link, known.id, known.epoch, entry)
        return sent

    def deliver_late(self, count: int) -> None:
        """Send entries that were read for a registration that has ended."""
        for _ in range(min(count, len(self.late))):
            link, epoch, entry = self.late.pop(0)
            if link.open:
                self.send_entry(link, 0, epoch, entry)

    def send_entry(self, link: Link, consumer: int, epoch: int | None, entry: int) -> None:
        payload = b"%d" % entry + bytes(self.sizes[entry])
        position = self.position(entry) if self.persistent else (0, 0)
        more: dict[str, Any] = {} if epoch is None else {"consumer_epoch": epoch}
        if self.batch > 1:
            more["metadata"] = {"num_messages_in_batch": self.batch}
        if (chunks := self.chunks_with(entry)) is not None:
            more["metadata"], payload = self._chunk(entry, chunks)
        if entry in self.parts:
            more["ack_set"] = ids.to_words(self.parts[entry])
        link.message(consumer, *position, payload, **more)

    def chunks_with(self, entry: int) -> list[int] | None:
        """Return the entries of the chunked message with this entry; None if the entry is no chunk."""
        return next((chunks for chunks in self.chunked if entry in chunks), None)

    def _chunk(self, entry: int, chunks: list[int]) -> tuple[dict[str, Any], bytes]:
        """Return metadata and payload of a chunk; the payload of the whole message is the number of its last entry."""
        whole = b"%d" % chunks[-1] + bytes(len(chunks) - 1)
        index, first_bytes = chunks.index(entry), len(whole) - len(chunks) + 1
        metadata = {
            "uuid": f"chunked{self.chunked.index(chunks)}",
            "chunk_id": index,
            "num_chunks_from_msg": len(chunks),
            "total_chunk_msg_size": len(whole),
        }
        return metadata, whole[:first_bytes] if index == 0 else b"\0"

    def _redeliver(self, link: Link, frame: Frame) -> None:
        """Redeliver. Entries that are already being read come first and with the new epoch, before the unacknowledged ones."""
        if (known := self.live(link)) is not None:
            asked = frame.command.redeliverUnacknowledgedMessages
            known.epoch = asked.consumer_epoch if asked.HasField("consumer_epoch") else known.epoch
            known.again = list(range(known.next, min(known.next + LATE, self.length)))
            known.next = self.cursor + 1

    # --- positions --------------------------------------------------------------------------------------------------

    def set_cursor(self, to: int) -> None:
        """Move the cursor, as an operator does: all entries after it must be delivered, even if they were delivered before.

        All single acknowledgements are forgotten.
        """
        again = self.messages(entry for entry in self.acked if entry > to)
        for entry, mask in self.parts.items():
            again |= self.messages([entry], ~mask) if entry > to else set()
        if to < self.cursor:
            again = self.messages(range(to + 1, self.length))
        self.owed = {each for each in self.owed | again if each[0] > to}
        self.cursor = self.stored_cursor = to
        self.acked, self.parts = set(), {}

    def forget_acks(self, count: int) -> None:
        """Forget the last acknowledgements, as a killed broker does; the cursor moves back by up to `count` entries."""
        if count:
            self.cursor = max(self.stored_cursor, self.cursor - count)
            self.acked = {entry for entry in self.acked if entry <= self.cursor}
            self.parts.clear()

    def _advance(self) -> None:
        while self.cursor + 1 in self.acked:
            self.cursor += 1

    def _ack(self, link: Link, frame: Frame) -> None:
        asked = frame.command.ack
        if self.live(link) is None or not self.persistent:
            return
        if asked.HasField("request_id") and not self._receipt(link, asked):
            return
        for each in asked.message_id:
            position = ids.entry_id(each)
            assert position[0] in dict(self.ledgers), "of another cluster"
            self._ack_entry(self.number(position), ids.from_words(each.ack_set), cumulative=asked.ack_type == asked.Cumulative)
        self._advance()
        self.parts = {entry: mask for entry, mask in self.parts.items() if entry > self.cursor and entry not in self.acked}

    def _receipt(self, link: Link, asked: pb.CommandAck) -> bool:
        """Send the receipt of an acknowledgement, or not, as `receipt` says; return True if the acknowledgement counts."""
        receipt, self.receipt = self.receipt, "sent"
        response = pb.CommandAckResponse(consumer_id=asked.consumer_id, request_id=asked.request_id)
        if receipt == "cut":
            link.drop()
            self.forget_registration()
            return False
        if receipt == "refused":
            response.error, response.message = pb.PersistenceError, "no"
        if receipt != "lost":
            link.send(ackResponse=response)
        return receipt != "refused"

    def _ack_entry(self, entry: int, unacknowledged: int, *, cumulative: bool) -> None:
        """Acknowledge the messages of an entry that are not in the mask; if `cumulative`, also all earlier entries."""
        earlier = set(range(entry)) if cumulative else set()
        covered = self.messages(earlier) | self.messages([entry] if entry >= 0 else [], ~unacknowledged)
        assert not covered & self.owed, f"acknowledged {entry}, {cumulative=}, never handed out: {covered & self.owed}"
        self.acked |= {each for each in earlier if each > self.cursor}
        if entry <= self.cursor or entry in self.acked:
            return
        self.parts[entry] = unacknowledged & self.parts.get(entry, unacknowledged)
        if not self.parts[entry]:
            self.acked.add(entry)

    def _seek(self, link: Link, frame: Frame) -> None:
        fails, self.seek_fails = self.seek_fails, ""
        if fails == "before":
            link.drop()
            return
        to = max(self.first, self.number(ids.entry_id(frame.command.seek.message_id)))
        self.cursor = self.stored_cursor = to - 1
        self.acked, self.parts = set(), {}
        self.owed = self.messages(range(to, self.length))
        if fails == "after":
            link.drop()
        elif fails == "silent":  # the broker does not close the consumer, and continues at the new position
            known = self.live(link)
            assert known is not None
            known.next, known.again = to, []
            success(link, frame)
        else:
            self.close_consumer()
            success(link, frame)

    def _last(self, link: Link, frame: Frame) -> None:
        asked = frame.command.getLastMessageId
        known = self.live(link)
        cursor = known.begin - 1 if self.reads and known is not None else self.cursor
        position = self.position(self.length - 1) if self.persistent else (-1, -1)
        body = pb.CommandGetLastMessageIdResponse(
            request_id=asked.request_id,
            last_message_id=ids.message_id(*position),
            consumer_mark_delete_position=ids.message_id(*self._position_of_cursor(cursor)),
        )
        link.send(getLastMessageIdResponse=body)

    def _position_of_cursor(self, entry: int) -> EntryId:
        """Return the position of a cursor at this entry; behind deleted ledgers it is before the first entry of the next one."""
        if 0 < self.first == entry + 1:
            ledger, _ = self.position(self.first)
            return ledger, -1
        return self.position(entry)
