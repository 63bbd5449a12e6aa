"""Send queue of one producer: numbers and encodes entries, sends them within the connection's window, and matches receipts.

The window limits the bytes in flight on a connection. The order never changes: entries move from the waiting ones to
`_in_flight`, and receipts arrive in the order of sending. When the registration at the broker ends, entries in flight wait again,
before all others, with the same bytes and sequence ids. Without a registration the queue is paused.

An entry expires if it has no receipt in time. An entry that expires while it waits is removed and never sent. If an entry expires
in flight, nobody knows whether the broker will store it, and it is not sent again. It moves to `_abandoned`, whose entries are
all older than those in flight, and keeps its room in the window until the broker responds or the registration ends.
"""

import asyncio
import math
from collections import deque
from collections.abc import Collection

from google.protobuf.message import EncodeError

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.net.waiting_sends import State, WaitingSends
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.producer.pending_entry import MAX_SEQUENCE, PendingEntry, entries_to_resend
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.ids import UNSIGNED_NONE
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb


class SendQueue:
    """Send queue of one producer. It is unbounded: the caller of `add` must limit the queued bytes."""

    def __init__(self, topic: str, producer_id: int, settings: ProducerSettings) -> None:
        self.name = settings.name or ""
        """Name of the producer, set at its first registration if the broker generates it."""
        self.schema_version = b""
        """Version of the producer's schema, set at each registration; empty without a schema."""
        self.next_sequence = 0
        """Sequence id of the next entry for which the caller sets none."""
        self.last_stored_sequence = -1
        """Highest sequence id with a receipt, or that the broker reported as stored at the first registration; -1: none."""
        self.reported_sequence = -1
        """The highest sequence id of this name that the broker reported as stored at the last registration; -1: none."""
        self.duplicates = 0
        """Number of entries that the broker had already stored."""
        self.sends: WaitingSends[PendingEntry] = WaitingSends(in_order=settings.fails_in_order, link=State.PAUSED)
        self._topic, self._settings = topic, settings
        self._encoder = SendEncoder(producer_id)
        self._waiting = self.sends.waiting
        self._in_flight: deque[PendingEntry] = deque()
        self._abandoned: deque[PendingEntry] = deque()
        self._reserved_bytes = 0
        """Bytes that are reserved in the window: of entries in flight and of abandoned entries."""
        self._unknown_outcomes: set[int] = set()
        """Highest sequence ids of entries that were abandoned or withdrawn when their registration ended: they may be stored."""
        self._idle: asyncio.Future[None] | None = None
        """Completed when no entry waits or is in flight; None if nobody waits for that."""
        self._connection: Connection | None = None
        """The connection to send over; None while the producer is not registered."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    @property
    def max_message_size(self) -> int | None:
        """The broker's limit for the size of an entry, from the present connection; None without one."""
        return None if self._connection is None else self._connection.max_message_size

    def add(self, entry: PendingEntry) -> None:
        """Add an entry at the end, and send it if the window has room."""
        self._waiting.append(entry)
        if self._connection is not None:
            self.send_queued()

    def attach(self, connection: Connection) -> None:
        """Send over this connection from now on. Queued entries that are already encoded are counted as retries."""
        self.sends.resume()
        self._connection = connection
        if connection.endpoint.link is not None:  # it counts retries for the metrics
            connection.endpoint.link.count_retries(sum(bool(entry.prefix) for entry in self._waiting))
        now = asyncio.get_running_loop().time()
        entries = entries_to_resend(self._waiting, now, connection.max_message_size, self.reported_sequence)
        self._waiting.clear()
        self._waiting.extend(entries)
        self.send_queued()

    def detach(self) -> None:
        """Stop using the connection: entries in flight wait again, before all others, but withdrawn ones fail."""
        self.sends.pause()
        connection, self._connection = self._connection, None
        if connection is not None:
            sends, size = len(self._in_flight) + len(self._abandoned), self._reserved_bytes
            in_flight = list(self._in_flight)
            self._unknown_outcomes.update(entry.highest for entry in self._abandoned)
            self._unknown_outcomes.update(entry.highest for entry in in_flight if entry.withdrawn)
            self._in_flight.clear()
            self._abandoned.clear()
            self._reserved_bytes = 0
            self.sends.put_back([entry for entry in in_flight if not entry.withdrawn])
            for entry in in_flight:
                if entry.withdrawn:
                    entry.fail(_withdrawal_error())
            connection.window.release(size, sends)
            self._update_idle()

    # --- sending ----------------------------------------------------------------------------------------------------

    def send_queued(self) -> None:
        """Send waiting entries while the connection's window has room."""
        connection, waiting = self._connection, self._waiting
        while waiting and connection is not None and connection.endpoint.alive:
            entry = waiting[0]
            message = entry.chunked
            if message is not None and entry.has_failed_chunk:  # the message cannot be stored any more
                waiting.popleft()
                continue
            # An entry with a prefix is encoded already.
            if not entry.prefix and not self._prepare(connection.max_message_size):
                continue
            if not connection.window.reserve(entry.size, self.send_queued):
                return  # the window calls `send_queued` when it has room
            waiting.popleft()
            if message is not None and message.begun_at is None:
                message.begun_at = asyncio.get_running_loop().time()
            self._in_flight.append(entry)
            self._reserved_bytes += entry.size
            connection.endpoint.send(entry.prefix, entry.payload)
        self._update_idle()

    def _prepare(self, max_message_size: int) -> bool:
        """Encode the first waiting entry; return False if it was replaced by its chunks, or was invalid and removed."""
        entry, settings = self._waiting[0], self._settings
        try:
            if entry.chunked is None:
                self._assign_sequence_ids(entry)
                if settings.chunking:
                    entry.unframe_payload(settings.chunk_bytes, max_message_size)
                entry.compress_payload(settings.codec)
                chunks = entry.chunks(settings.chunk_bytes, max_message_size) if settings.chunking else []
                if len(chunks) > 1:
                    self._waiting.popleft()
                    self.sends.put_back(chunks)
                    return False
            entry.encode(self._encoder, max_message_size, settings)
        except ClusterError as error:
            entry = self._waiting.popleft()
            if error.failure is Failure.REFUSED or not self.sends.in_order:
                entry.fail(error)
            else:  # the caller will send these messages again, so nothing behind them may be stored before
                self.sends.fail([entry], error)
            return False
        except (EncodeError, ValueError) as error:
            problem = f"an entry for topic {self._topic} cannot be encoded: {error}"
            self._waiting.popleft().fail(ClusterError(problem, Failure.REFUSED))
            return False
        # A message that is split again after a reconnection is followed by entries that have their ids already.
        self.next_sequence = max(self.next_sequence, entry.highest + 1)
        return True

    def _assign_sequence_ids(self, entry: PendingEntry) -> None:
        """Set the sequence ids of an entry, and the metadata that is the same for all entries of the producer."""
        if entry.sequence < 0:  # the caller set none
            entry.sequence = self.next_sequence
        if entry.highest < 0:
            entry.highest = entry.sequence + entry.count - 1
        if entry.highest > MAX_SEQUENCE:
            raise ClusterError(
                f"producer {self.name!r} has used up its sequence ids in topic {self._topic}: choose another name", Failure.FATAL
            )
        entry.set_producer(self.name, self.schema_version)

    # --- receipts ---------------------------------------------------------------------------------------------------

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> bool:
        """Complete the oldest entry in flight; return False for the receipt of an entry that is no longer in flight.

        Raises RemoteProtocolError for an out-of-order receipt.
        """
        sequence, in_flight = receipt.sequence_id, self._in_flight
        if self._abandoned:
            self._release_abandoned(sequence)
        if not in_flight or sequence < in_flight[0].sequence:
            return False  # the entry was abandoned, or sent twice and has its receipt
        if sequence != in_flight[0].sequence:
            expected = in_flight[0].sequence
            raise RemoteProtocolError(
                f"out-of-order receipt for topic {self._topic}: sequence id {sequence}, expected {expected}"
            )
        ledger, entry = receipt.message_id.ledgerId, receipt.message_id.entryId
        if ledger == entry == UNSIGNED_NONE:  # the broker had already stored the entry
            self.duplicates += 1
            ledger = entry = -1
        stored = self._pop_oldest()
        self.last_stored_sequence = stored.highest
        stored.on_receipt(ledger, entry)
        self._update_idle()
        return True

    def is_own_sequence(self, sequence: int) -> bool:
        """Return True if the broker's last sequence id can be from this producer.

        False means that another producer has sent with the same name. Call it while detached: no entry is in flight then.
        """
        if sequence <= self.last_stored_sequence or sequence in self._unknown_outcomes:
            return True
        return any(entry.highest == sequence for entry in self._waiting)

    def _release_abandoned(self, sequence: int) -> None:
        """Free the room in the window of abandoned entries up to this sequence id.

        The broker responds in order, so it has already processed them.
        """
        while self._abandoned and self._abandoned[0].sequence <= sequence:
            self._release(self._abandoned.popleft())

    def refuse(self, sequence: int, error: ClusterError) -> None:
        """Fail one entry that the broker refused; `sequence` is the entry's first or highest sequence id.

        Do nothing if the entry is no longer pending. Raises RemoteProtocolError if `sequence` is higher than those in flight,
        because it was never sent: if the broker meant an entry in flight, that entry would never get a receipt.
        """
        for entries in (self._abandoned, self._in_flight):
            for entry in entries:
                if sequence in (entry.sequence, entry.highest):
                    entries.remove(entry)
                    self._release(entry)
                    entry.fail(error)
                    self._update_idle()
                    return
        if self._in_flight and sequence > self._in_flight[-1].highest:
            raise RemoteProtocolError(
                f"topic {self._topic}: the broker sent an error for sequence id {sequence}, which was never sent"
            )

    def _pop_oldest(self) -> PendingEntry:
        """Remove the oldest entry in flight."""
        entry = self._in_flight.popleft()
        self._release(entry)
        return entry

    def _release(self, entry: PendingEntry) -> None:
        """Free the entry's room in the window of the connection."""
        self._reserved_bytes -= entry.size
        if self._connection is not None:
            self._connection.window.release(entry.size)

    # --- expiry and withdrawal --------------------------------------------------------------------------------------

    def expire(self, added_until: float, error: ClusterError) -> None:
        """Fail entries that were added at `added_until` (loop time) or earlier, oldest first.

        Entries in flight may be stored nevertheless. With `fails_in_order` one expired entry fails all later ones too.
        """
        oldest = self._in_flight[0] if self._in_flight else self._waiting[0] if self._waiting else None
        if oldest is None or oldest.added_at > added_until:
            return
        if self.sends.in_order:
            added_until = math.inf
        expired: list[PendingEntry] = []
        while self._in_flight and self._in_flight[0].added_at <= added_until:
            expired.append(self._in_flight.popleft())
        self._abandoned += expired
        if self.sends.in_order:
            self.sends.fail(expired, error)
        else:
            while self._waiting and self._waiting[0].added_at <= added_until:
                expired.append(self._waiting.popleft())
            for entry in expired:
                entry.fail(error)
        self._update_idle()

    def withdraw(self, owners: Collection[object]) -> None:
        """Stop sending the entries of these owners (`Caller.owner`).

        Waiting entries fail now, entries in flight fail only if the connection ends before their receipt.
        """
        self.sends.withdraw(owners, self._in_flight, _withdrawal_error())
        self._update_idle()

    def close(self, error: ClusterError) -> None:
        """Fail all waiting entries, and every later one; call it after `detach`."""
        self.sends.close(error)
        self._update_idle()

    async def wait_until_idle(self) -> None:
        """Wait until no entry waits or is in flight."""
        if len(self):
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _update_idle(self) -> None:
        if self._idle is not None and not len(self):
            self._idle.set_result(None)
            self._idle = None


def _withdrawal_error() -> ClusterError:
    return ClusterError("the entry was withdrawn before it was stored", Failure.RETRY)
