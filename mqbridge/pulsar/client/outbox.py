"""The entries of one producer on their way: numbered, encoded, in flight within the connection's window, matched with receipts.

The order never changes: what waits in `_queue` moves to `_flight`, receipts come in the order of sending, and when a session ends
what was in flight goes back to the front of the queue, with the same bytes under the same sequence ids.

An entry that is given up leaves the queue and is never sent. When it is on the wire, nobody knows what becomes of it: it waits in
`_abandoned`, which is all older than the flight, where it counts against the window until the broker has answered, or the session
ends. It is not sent again.
"""

import asyncio
import math
from collections import deque
from collections.abc import Collection

from google.protobuf.message import EncodeError

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.sending import Sending
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.ids import UNSIGNED_NONE
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb

MAX_SEQUENCE = (1 << 63) - 1
"""Brokers compare sequence ids as signed numbers: a larger one would be below all others."""


class Outbox:
    """Holds whatever it is given: who adds bounds the bytes that wait."""

    def __init__(self, topic: str, producer_id: int, publication: Publication) -> None:
        self.name = publication.name or ""
        self.schema_version = b""
        self.next_sequence = 0
        self.answered = -1
        """The highest sequence id that the broker has answered for."""
        self.duplicates = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._topic, self._publication = topic, publication
        self._encoder = SendEncoder(producer_id)
        self._queue: deque[Sending] = deque()
        self._flight: deque[Sending] = deque()
        self._abandoned: deque[Sending] = deque()
        self._flight_bytes = 0
        """Of both."""
        self._unknown: set[int] = set()
        """The highest sequence ids of what was given up on the wire of a session that is over."""
        self._session: Connection | None = None

    def __len__(self) -> int:
        return len(self._queue) + len(self._flight)

    def add(self, sending: Sending) -> None:
        """Send it behind all that is here."""
        self._queue.append(sending)
        self.idle.clear()
        if self._session is not None:
            self.pump()

    def attach(self, session: Connection) -> None:
        """Send over this connection from now on; what has its bytes already was sent over another one."""
        self._session = session
        if session.endpoint.link is not None:
            session.endpoint.link.repeats(sum(bool(sending.head) for sending in self._queue))
        self.pump()

    def detach(self) -> None:
        """The session is over: what was in flight comes first in the next one, unless it is withdrawn."""
        session, self._session = self._session, None
        if session is not None:
            sends, size = len(self._flight) + len(self._abandoned), self._flight_bytes
            self._unknown.update(sending.highest for sending in self._abandoned)
            for sending in self._flight:
                if sending.withdrawn:
                    self._unknown.add(sending.highest)
                    sending.fail(_withdrawn())
            self._queue.extendleft(sending for sending in reversed(self._flight) if not sending.withdrawn)
            self._flight.clear()
            self._abandoned.clear()
            self._flight_bytes = 0
            session.window.give(size, sends)
            self._settle()

    # --- out --------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Move from the queue to the flight what the connection has room for."""
        session, queue = self._session, self._queue
        while queue and session is not None and session.endpoint.alive:
            sending = queue[0]
            if sending.chunked is not None and sending.given_up:
                queue.popleft()
                continue
            if not sending.head and not self._prepare(session.max_message_size):
                continue
            if not session.window.take(sending.size, self.pump):
                return
            queue.popleft()
            self._flight.append(sending)
            self._flight_bytes += sending.size
            session.endpoint.send(sending.head, sending.payload)
        self._settle()

    def _prepare(self, max_message_size: int) -> bool:
        """Give the first of the queue its bytes; False when something else is the first now: its chunks, or what follows it."""
        sending, publication = self._queue[0], self._publication
        try:
            if sending.chunked is None:
                self._number(sending)
                sending.compress(publication.codec)
                chunks = sending.chunks(publication.chunk_bytes, max_message_size) if publication.chunking else []
                if len(chunks) > 1:
                    self._queue.popleft()
                    self._queue.extendleft(reversed(chunks))
                    return False
            sending.encode(self._encoder, max_message_size)
        except ClusterError as error:
            self._queue.popleft().fail(error)
            return False
        except (EncodeError, ValueError) as error:
            self._queue.popleft().fail(ClusterError(f"an entry cannot be encoded: {error}", Failure.REFUSED))
            return False
        self.next_sequence = sending.highest + 1
        return True

    def _number(self, sending: Sending) -> None:
        """Give it its sequence ids, and what else the metadata says about its producer."""
        if sending.sequence < 0:
            sending.sequence = self.next_sequence
        if sending.highest < 0:
            sending.highest = sending.sequence + sending.count - 1
        if sending.highest > MAX_SEQUENCE:
            raise ClusterError(
                f"{self.name!r} has used up its sequence ids on {self._topic}: take another producer name", Failure.FATAL
            )
        metadata = sending.metadata
        metadata.producer_name = self.name
        metadata.sequence_id = sending.sequence
        if sending.highest > sending.sequence:
            metadata.highest_sequence_id = sending.highest
        if self.schema_version and not metadata.HasField("schema_version"):
            metadata.schema_version = self.schema_version

    # --- in ---------------------------------------------------------------------------------------------------------

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> bool:
        """The oldest one is stored; False for a receipt that nothing waits for.

        Raises RemoteProtocolError for one out of turn.
        """
        sequence, flight = receipt.sequence_id, self._flight
        if self._abandoned:
            self._answered_up_to(sequence)
        if not flight or sequence < flight[0].sequence:
            return False  # of something that was given up, or that was sent twice
        if sequence != flight[0].sequence:
            expected = flight[0].sequence
            raise RemoteProtocolError(f"a receipt for sequence id {sequence} of {self._topic} where {expected} is due")
        ledger, entry = receipt.message_id.ledgerId, receipt.message_id.entryId
        if ledger == entry == UNSIGNED_NONE:
            self.duplicates += 1
            ledger = entry = -1
        landed = self._land()
        self.answered = landed.highest
        landed.stored(ledger, entry)
        self._settle()
        return True

    def may_end_at(self, sequence: int) -> bool:
        """Whether the broker may have this as the last one if nobody but us has sent; asked between two sessions."""
        if sequence <= self.answered or sequence in self._unknown:
            return True
        return any(sending.highest == sequence for sending in self._queue)

    def _answered_up_to(self, sequence: int) -> None:
        """The broker answers in order: it is done with what was abandoned before this."""
        while self._abandoned and self._abandoned[0].sequence <= sequence:
            self._release(self._abandoned.popleft())

    def refuse(self, sequence: int, error: ClusterError) -> None:
        """One entry will never be stored. The broker names it by its highest sequence id.

        Raises RemoteProtocolError for one that is yet to come: for the one that is meant there would be no receipt.
        """
        for entries in (self._abandoned, self._flight):
            for sending in entries:
                if sequence in (sending.sequence, sending.highest):
                    entries.remove(sending)
                    self._release(sending)
                    sending.fail(error)
                    self._settle()
                    return
        if self._flight and sequence > self._flight[-1].highest:
            raise RemoteProtocolError(f"an error for sequence id {sequence} of {self._topic}, which was not sent")

    def _land(self) -> Sending:
        """Take the oldest one out of the flight."""
        sending = self._flight.popleft()
        self._release(sending)
        return sending

    def _release(self, sending: Sending) -> None:
        self._flight_bytes -= sending.size
        if self._session is not None:
            self._session.window.give(sending.size)

    # --- giving up --------------------------------------------------------------------------------------------------

    def expire(self, deadline: float, error: ClusterError) -> bool:
        """Fail what was given before this loop time, oldest first. It may be stored nevertheless, when it was in flight.

        Where failures are in order, what was given later fails too as soon as one does. False when none did.
        """
        before = len(self)
        oldest = self._flight[0] if self._flight else self._queue[0] if self._queue else None
        if self._publication.fails_in_order and oldest is not None and oldest.since <= deadline:
            deadline = math.inf
        while self._flight and self._flight[0].since <= deadline:
            sending = self._flight.popleft()
            self._abandoned.append(sending)
            sending.fail(error)
        while self._queue and self._queue[0].since <= deadline:
            self._queue.popleft().fail(error)
        self._settle()
        return len(self) < before

    def withdraw(self, owners: Collection[object]) -> None:
        """What these have sent is not sent any more: it fails as soon as it is not on the wire."""
        kept: deque[Sending] = deque()
        for sending in self._queue:
            if sending.owner in owners:
                sending.fail(_withdrawn())
            else:
                kept.append(sending)
        self._queue = kept
        for sending in self._flight:
            if sending.owner in owners:
                sending.withdrawn = True
        self._settle()

    def fail_all(self, error: ClusterError) -> None:
        """Nothing will be sent any more; after `detach`."""
        while self._queue:
            self._queue.popleft().fail(error)
        self._settle()

    def _settle(self) -> None:
        if not self._queue and not self._flight:
            self.idle.set()


def _withdrawn() -> ClusterError:
    return ClusterError("it was withdrawn before it was stored", Failure.RETRY)
