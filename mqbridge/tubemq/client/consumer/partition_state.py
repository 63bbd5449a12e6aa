"""The state of one held partition: its lease, its last pack, its positions, and the events on which tasks wait for a change.

A pack contains the messages of one response to a get. Only `PartitionState` changes this state, and it does no IO. Its methods
`on_...` record what happened. A transition that is not in the tables below raises LocalProtocolError.

A generation lasts from one registration to the next. A request is abandoned if its caller no longer waits for the response. It
may reach the Broker at any later time and move the group's position there. So an abandoned request ends the generation: the
partition is registered again with a new client id, and the Broker refuses the abandoned request (411 or 412) if it arrives later.

Premises, all seen on real Brokers:
- All partitions of a store share one index, so offsets of one partition are not contiguous. A get without data moves the group's
  position past entries of other partitions, and its response does not say how far. So `expected_offset` is only a lower bound
  then (`has_moved`), and a pack that begins after it is no sign of a loss.
- A Broker that has deleted the data at the group's position continues at its first offset and reports nothing.
- A Broker that shuts down in order counts the packs that are out as consumed. A Broker that is killed goes back to earlier
  offsets, and gives lost ones to new messages. Both forget our registration.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from enum import Enum, IntEnum
from typing import NamedTuple

from mqbridge.errors import GapError, LaneRevoked, LocalProtocolError, MqbridgeError

INDEX_ENTRY_BYTES = 28
"""Bytes of a message's entry in the index of a store. Offsets are byte offsets in this index."""
MAX_PACK_ENTRIES = 40_500
"""Most index entries that a Broker reads for one get: 13,500, or three times as many with a filter."""
MAX_COMPARED_GETS = 16
"""Number of gets in which the last message of a pack is looked for when data is compared: a Broker's answer has half a MiB or one
large message."""
NO_LIMIT = 1 << 62
"""Beyond every offset."""
DELETED_MESSAGES = 5
"""If deleted data must have contained this many messages of the partition, judging by its share of the data read last, it did."""


class Lease(Enum):
    """State of our registration at the Broker, which heartbeats renew.

    NEW        not registered yet
    READING    registered: gets may be sent
    FORGOTTEN  the Broker no longer has our registration, or the Broker's position has to be set: register again before the next
               get
    STOPPED    data was deleted before it was read: heartbeats still renew the lease, but reading continues only after a seek
    RELEASING  wanted for another member, and kept for a while: no more gets, but heartbeats still renew the lease, and the
               delivered pack is confirmed as usual
    REVOKED    revoked or being released: no more gets, but the delivered pack may still be confirmed
    RELEASED   released, or lost to another consumer: final
    """

    NEW = "new"
    READING = "reading"
    FORGOTTEN = "forgotten"
    STOPPED = "stopped"
    RELEASING = "releasing"
    REVOKED = "revoked"
    RELEASED = "released"


class PackState(Enum):
    """State of the last pack. The Broker counts it as consumed when the next request has the flag "last pack consumed".

    NONE       there is no pack
    FETCHING   a get is in flight
    DELIVERED  delivered to the reader, neither confirmed nor rejected
    CONFIRMED  confirmed by the reader, but not yet at the Broker
    REJECTED   has to be delivered again
    UNKNOWN    a get was abandoned or failed inside the Broker: the Broker's position may be after a pack that we never received
    """

    NONE = "none"
    FETCHING = "fetching"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class AbandonedRequests(IntEnum):
    """Which requests were abandoned since the last registration; the largest value counts.

    NONE           no request
    READS          gets or commits
    REGISTRATIONS  requests to register or unregister: if one still reaches the Broker, it may move the group's position or end
                   the lease
    """

    NONE = 0
    READS = 1
    REGISTRATIONS = 2


NEW, READING, FORGOTTEN, STOPPED, RELEASING, REVOKED, RELEASED = Lease
NONE, FETCHING, DELIVERED, CONFIRMED, REJECTED, UNKNOWN = PackState

# Both tables: event -> state before -> state after. A missing entry means that the event cannot happen in that state.
LEASE_TABLE: dict[str, dict[Lease, Lease]] = {
    "registered": {
        NEW: READING,
        READING: READING,
        FORGOTTEN: READING,
        STOPPED: READING,
        RELEASING: RELEASING,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    # STOPPED stays: reading continues only after a seek, and a seek registers again in any case. RELEASING stays, too: there are
    # no more gets. If the Broker lost the registration, a revocation follows at once (`on_registration_forgotten`).
    "forgotten": {
        READING: FORGOTTEN,
        FORGOTTEN: FORGOTTEN,
        STOPPED: STOPPED,
        RELEASING: RELEASING,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    "gap": {READING: STOPPED, FORGOTTEN: STOPPED},
    "wanted": {READING: RELEASING, STOPPED: RELEASING},
    "revoked": {
        NEW: REVOKED,  # a first request to register may have been sent
        READING: REVOKED,
        FORGOTTEN: REVOKED,  # the request to unregister tells whether the Broker has lost the registration
        STOPPED: REVOKED,
        RELEASING: REVOKED,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    "released": dict.fromkeys(Lease, RELEASED),
}

PACK_TABLE: dict[str, dict[PackState, PackState]] = {
    "get sent": {NONE: FETCHING, DELIVERED: FETCHING, CONFIRMED: FETCHING, REJECTED: FETCHING, UNKNOWN: FETCHING},
    "pack received": {FETCHING: DELIVERED},
    "no pack received": {FETCHING: NONE},
    # A pack that arrives when nobody may receive it any more. The Broker has it out, so no request may confirm it.
    "pack dropped": {FETCHING: REJECTED},
    "get failed": {FETCHING: UNKNOWN},
    # The Broker refused a get before it read anything: the previous pack still has to be confirmed or delivered again.
    "refused after none": {FETCHING: NONE},
    "refused after delivered": {FETCHING: REJECTED},
    "refused after confirmed": {FETCHING: CONFIRMED},
    "refused after rejected": {FETCHING: REJECTED},
    "refused after unknown": {FETCHING: UNKNOWN},
    "confirmed": {DELIVERED: CONFIRMED},
    # The Broker no longer knows that the pack is out: no request can confirm it, only a registration at its end.
    "detached confirmed": {DELIVERED: NONE},
    "rejected": {DELIVERED: REJECTED},
    # A commit confirms the last pack, or has it delivered again; its response contains the offset of the next get.
    "committed": {NONE: NONE, DELIVERED: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
    # The Broker may have carried out a failed commit. A pack that the reader has not confirmed is delivered again in any case.
    "commit failed": {NONE: NONE, DELIVERED: REJECTED, CONFIRMED: CONFIRMED, REJECTED: REJECTED, UNKNOWN: UNKNOWN},
    # A registration sets the offset of the next get, so the state of the previous pack no longer matters.
    "registered": {NONE: NONE, DELIVERED: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
    # The reader keeps the pack that is out while the partition is registered again.
    "registered again": {DELIVERED: DELIVERED},
    # A get in flight stays FETCHING until its response arrives or its caller is cancelled.
    "released": {NONE: NONE, FETCHING: FETCHING, DELIVERED: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
}


class Unsettled(NamedTuple):
    """Where a group has to go on in a partition whose Broker may have counted messages as consumed that nobody has confirmed.

    A Broker that shuts down in order does that with a pack that is out: it moves the group from `offset` to the pack's end, which
    is `limit` or less. If the group's position is after `limit`, another member has read on since.
    """

    offset: int
    limit: int

    def is_needed_at(self, position: int) -> bool:
        """Return True if the group has to go back from this position, at which its Broker would continue."""
        return self.offset < position <= self.limit


class PartitionState:
    """State of the partition `name`. Positions are byte offsets in the index that all partitions of a store share.

    safe_offset      all messages before this offset are delivered and confirmed: reading can always resume here
    expected_offset  lower bound of the offset at which the next pack begins; None if unknown
    has_moved        False: the next pack begins exactly at `expected_offset`, unless the Broker has deleted data. True: the
                     Broker may have moved the position on, past entries of other partitions
    max_offset       end of the store's index, from the Broker's last response

    `is_alone` returns True if every entry of the store's index is a message that this reader has to get: the store has no other
    partition, as far as the caller knows now, and no filter applies. By default it returns False.
    """

    def __init__(self, name: str, is_alone: Callable[[], bool] = bool) -> None:
        self.lease, self.pack_state = NEW, NONE
        """The states of the lease (only READING allows gets) and of the last pack."""
        self.abandoned = AbandonedRequests.NONE
        """The abandoned requests since the last registration: none, READS (gets or commits), or REGISTRATIONS."""
        self.generation = 0
        """Number of registrations so far."""
        self.safe_offset = self.max_offset = 0
        self.expected_offset: int | None = None
        self.has_moved = False
        self._is_alone = is_alone
        self.possible_gap: tuple[int, int] | None = None
        """First offset and end of deleted data of which nobody knows whether it had messages of this partition.

        The caller takes it (`take_possible_gap`) to report it; reading goes on.
        """
        self.is_detached = False
        """True if the delivered pack is of an earlier registration: the Broker no longer knows that it is out."""
        self.pack_end: int | None = None
        """Offset at which the detached pack ends; None if unknown."""
        self.is_position_unset = False
        """True if a detached pack was confirmed: the Broker learns the position, `expected_offset`, only by a registration."""
        self.is_locating = False
        """True while requests to register find out where to go on: the group's position at the Broker is then provisional."""
        self._pack_offset = 0
        """Offset at which the last pack begins."""
        self._pack_messages = 0
        self._share = 0.0
        """Messages of this partition per index entry in the last pack whose end is known; 0 if unknown, or after a get without
        data, since all existing data was read then."""
        self.stop_reason: MqbridgeError | None = None
        """Why reading stopped: GapError in STOPPED, LaneRevoked in REVOKED and RELEASED; None while reading goes on."""
        self._name = name
        self._pack_before_get = NONE
        """State of the previous pack when the last get was sent."""
        self.settled = asyncio.Event()
        """Set while no get is in flight and no delivered pack waits to be confirmed or rejected."""
        self.settled.set()
        self.releasing = asyncio.Event()
        """Set when the partition is wanted for another member, and when it is revoked or released."""
        self.revoked = asyncio.Event()
        """Set as soon as the partition is revoked or released."""
        self._revocation_timeouts: set[asyncio.Timeout] = set()
        """Open timeouts of `raise_on_revocation`. The end of the lease reschedules them to the past: they expire at once."""

    def _transition(self, lease_event: str = "", pack_event: str = "") -> None:
        """Apply an event to the lease, to the pack, or to both, and wake the tasks that wait for it; an empty event is none."""
        try:
            new_lease = LEASE_TABLE[lease_event][self.lease] if lease_event else self.lease
            new_pack = PACK_TABLE[pack_event][self.pack_state] if pack_event else self.pack_state
        except KeyError as error:
            event = " and ".join(filter(None, (lease_event, pack_event)))
            problem = f"{self._name}: {event!r} cannot happen with lease {self.lease.value} and pack {self.pack_state.value}"
            raise LocalProtocolError(problem) from error
        self.lease, self.pack_state = new_lease, new_pack
        if new_pack is FETCHING:
            self.settled.clear()
        elif new_pack is not DELIVERED:  # a delivered pack was FETCHING before
            self.settled.set()
        if lease_event and (self.is_over or new_lease is RELEASING):
            self.releasing.set()
        if lease_event and self.is_over:
            self._end_waits()

    def _end_waits(self) -> None:
        self.revoked.set()
        for timeout in self._revocation_timeouts:
            timeout.reschedule(0.0)
        self._revocation_timeouts.clear()

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the partition is revoked or released."""
        return self.lease in (REVOKED, RELEASED)

    @property
    def is_registered(self) -> bool:
        """True if we have a registration at the Broker, as far as we know."""
        # The generation is 0 if the partition was revoked before its first registration.
        return self.lease in (READING, STOPPED, RELEASING, REVOKED) and self.generation > 0

    @property
    def must_register(self) -> bool:
        """True if the partition has to be registered before the next get; with a new client id if requests are `abandoned`."""
        return self.lease in (NEW, FORGOTTEN) or self.abandoned is not AbandonedRequests.NONE

    @property
    def must_unregister(self) -> bool:
        """True if the partition is revoked and the Broker may still have our registration."""
        return self.lease is REVOKED and (self.generation > 0 or self.abandoned is not AbandonedRequests.NONE)

    @property
    def unsettled(self) -> Unsettled | None:
        """Where the group must continue, if the Broker may have lost our registration; None for its own position.

        A Broker that shut down in order has confirmed a pack that is out, and has moved the group behind it.
        """
        offset: int | None = self.safe_offset
        if self.is_position_unset:
            offset = self.expected_offset
        elif self.is_locating:
            offset = self.safe_offset if self.expected_offset is None else self.expected_offset
        elif not self.generation or (self.abandoned is AbandonedRequests.NONE and self.pack_state in (NONE, CONFIRMED)):
            offset = None
        return None if offset is None else Unsettled(offset, self.end_of_unsettled)

    @property
    def end_of_unsettled(self) -> int:
        """Largest offset to which a Broker may have moved the group by itself; `safe_offset` if no pack is or may be out."""
        if self.is_locating:
            return self.safe_offset + (MAX_COMPARED_GETS + 1) * MAX_PACK_ENTRIES * INDEX_ENTRY_BYTES  # our own gets have moved it
        if self.pack_state in (NONE, CONFIRMED) and self.abandoned is AbandonedRequests.NONE:
            return self.safe_offset
        most = self.safe_offset + MAX_PACK_ENTRIES * INDEX_ENTRY_BYTES
        # Only the response with the pack itself says where the store ended when the pack was read.
        return min(self.max_offset, most) if self.pack_state in (DELIVERED, REJECTED) else most

    @property
    def can_query_position(self) -> bool:
        """True if only the Broker knows where to continue, and the response to a commit can tell.

        If this is False and requests are abandoned, reading resumes at `safe_offset`.
        """
        is_unknown = self.expected_offset is None and self.pack_state in (CONFIRMED, UNKNOWN)
        return self.abandoned is AbandonedRequests.READS and self.lease is READING and is_unknown

    @property
    def may_query_position(self) -> bool:
        """True if a commit only returns the group's position: there is no pack to confirm or to deliver again."""
        return self.lease is READING and self.pack_state is NONE and self.abandoned is AbandonedRequests.NONE

    @property
    def is_position_ahead(self) -> bool:
        """True if the group's position is or will be after `safe_offset`, all before it is confirmed, and a commit returns it."""
        has_moved = self.pack_state in (CONFIRMED, UNKNOWN) or (self.pack_state is NONE and self.has_moved)
        is_group_position = self.abandoned <= AbandonedRequests.READS and not (self.is_locating or self.is_position_unset)
        return has_moved and is_group_position and self.must_unregister

    @property
    def is_forgotten_beneath_pack(self) -> bool:
        """True if the Broker has lost the registration while the last pack is not confirmed: register again at once.

        Otherwise a Broker that shut down in order keeps the pack as confirmed, and whatever ends this consumer ends its claim.
        """
        return self.lease is FORGOTTEN and self.pack_state in (DELIVERED, REJECTED)

    @property
    def resume_offset(self) -> int | None:
        """The offset at which to register again; None for the group's position at the Broker.

        If the last pack is confirmed, this is the end of that pack; if the end is unknown here, the Broker's position is used.
        If the last pack is not confirmed, or requests are abandoned, the Broker's position cannot be used: a Broker that shuts
        down cleanly counts the last pack that it sent as consumed. Reading then resumes at `safe_offset`.
        """
        if self.abandoned is AbandonedRequests.NONE and self.pack_state in (NONE, CONFIRMED):
            return self.expected_offset
        return self.safe_offset

    def raise_if_stopped(self) -> None:
        """Raise `stop_reason` if reading has stopped."""
        if self.stop_reason is not None:
            raise self.stop_reason

    def may_get(self) -> bool:
        """Return True if a get may be sent without another registration. Raises like `raise_if_stopped`."""
        self.raise_if_stopped()
        return not self.must_register and self.lease is not RELEASING

    # --- waiting ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def raise_on_revocation(self) -> AsyncIterator[None]:
        """Cancel the body of the `with` statement if the partition is revoked or released meanwhile; raise LaneRevoked."""
        if self.is_over:
            self.raise_if_stopped()  # raises LaneRevoked, the stop reason of a partition that is over
        try:
            async with asyncio.timeout(None) as timeout:
                self._revocation_timeouts.add(timeout)
                try:
                    yield
                finally:
                    self._revocation_timeouts.discard(timeout)
        except TimeoutError:
            self.raise_if_stopped()
            raise  # a timeout inside the body

    async def wait_while_releasing(self) -> None:
        """If the partition is wanted for another member, wait until it is revoked or released, and raise LaneRevoked."""
        if self.lease is RELEASING:
            await self.revoked.wait()
            self.raise_if_stopped()

    async def sleep_unless_revoked(self, seconds: float) -> None:
        """Sleep for `seconds`; if the partition is revoked or released meanwhile, raise LaneRevoked at once."""
        try:
            async with asyncio.timeout(seconds):
                await self.revoked.wait()
        except TimeoutError:
            return
        self.raise_if_stopped()

    # --- registrations ----------------------------------------------------------------------------------------------

    def on_registered(self, start: int, max_offset: int, requested: int | None) -> None:
        """Start a new generation: the Broker registered us at offset `start`.

        If `start` is after the `requested` offset, the data in between was deleted; see `_on_deleted`. With `requested` None any
        start is accepted.
        """
        # A get in flight changes the pack's state by itself, when it ends.
        self._transition("registered", "registered" if self.pack_state is not FETCHING else "")
        self.is_detached, self.pack_end = False, None
        self._start_generation(start, max_offset, requested)

    def on_registered_again(self, start: int, max_offset: int, requested: int | None, pack_end: int | None) -> None:
        """Like `on_registered`, while a pack is delivered and not settled: the reader keeps it, as a detached pack.

        `pack_end` is the offset at which it ends, None if unknown. The Broker sends the pack again unless it is confirmed.
        """
        pack_begin = self.safe_offset
        self._transition("registered", "registered again")
        self.is_detached, self.pack_end = True, pack_end
        # Data of the pack itself may be gone: the reader has it. It is a gap only if the reader rejects the pack.
        self._start_generation(start, max_offset, None if requested is None or pack_end is None else pack_end)
        self.safe_offset = min(start, pack_begin)

    def _start_generation(self, start: int, max_offset: int, requested: int | None) -> None:
        self.generation += 1
        self.abandoned = AbandonedRequests.NONE
        self.is_position_unset = self.has_moved = self.is_locating = False
        self.safe_offset = self.expected_offset = start
        self.max_offset = max_offset
        if self.lease is READING:  # not if the partition was revoked meanwhile
            self.stop_reason = None
            if requested is not None and start > requested:
                self._on_deleted(requested, start)

    def on_registration_abandoned(self) -> None:
        """Record that a request to register or unregister was abandoned.

        If it reaches the Broker later, it may move the group's position or end the lease.
        """
        self.abandoned = AbandonedRequests.REGISTRATIONS

    def on_registration_forgotten(self, generation: int) -> None:
        """Record that the Broker no longer has our registration; ignored if `generation` is an earlier one.

        A partition that was only kept for the messages in flight ends: the Broker may count them as consumed, so the release has
        to set the group back soon.
        """
        if generation != self.generation:
            return
        self._transition("forgotten")
        if self.lease is RELEASING:
            self.revoke(LaneRevoked(f"{self._name} was given up: the Broker has lost its registration"))

    # --- gets -------------------------------------------------------------------------------------------------------

    def on_get_sent(self) -> bool:
        """Record that a get is about to be sent; return True if it has to confirm the previous pack.

        Raises LocalProtocolError if the partition has to be registered again first.
        """
        if not self.may_get():
            raise LocalProtocolError(f"{self._name}: a get is not allowed before the partition is registered again")
        before = self.pack_state
        self._transition(pack_event="get sent")
        self._pack_before_get = before
        if before in (DELIVERED, REJECTED):
            self.expected_offset, self.has_moved = self.safe_offset, False  # the same pack again, unless it was deleted
            self.is_detached, self.pack_end = False, None
        return before is CONFIRMED

    @property
    def is_redelivery(self) -> bool:
        """True if the get in flight has the Broker send the previous pack again."""
        return self.pack_state is FETCHING and self._pack_before_get in (DELIVERED, REJECTED)

    def on_data(self, offset: int, max_offset: int, *, messages: int, is_recent: bool = True, is_pack_gone: bool = False) -> bool:
        """Record that the get returned data read from `offset`; return False if it has to be read again.

        With 0 `messages`, no message in the data is ours: there is no pack to confirm, since the Broker confirms the data by
        itself. `is_recent` means that the Broker responded a moment ago, too: it cannot have deleted data that was new then.
        Without that, a Broker that has moved the position on may also have deleted data. So the partition is registered at
        `expected_offset`: if the Broker starts later, the data there is gone. `is_pack_gone` means that a pack that was to come
        again (`is_redelivery`) did not. Raises GapError if messages were lost (`_on_deleted`), and LaneRevoked if the partition
        was revoked meanwhile. A pack that arrives while the partition is given up is dropped.
        """
        if self.is_over or self.lease is RELEASING:  # the partition's next owner will read this pack
            self._transition(pack_event="pack dropped" if messages else "no pack received")
            if messages:
                self.safe_offset, self.max_offset = offset, max_offset
            self.raise_if_stopped()
            return False
        expected = self.expected_offset
        # In a store without other partitions nothing but a deletion moves the position.
        if expected is not None and offset > expected and (not self.has_moved or not is_recent or self._is_alone()):
            if self.has_moved:
                self._transition("forgotten", "no pack received")
                return False
            self._on_deleted(expected, offset, is_certain=is_pack_gone)
            if self.stop_reason is not None:
                self._transition(pack_event="no pack received")
                self.raise_if_stopped()
        self._transition(pack_event="pack received" if messages else "no pack received")
        self.safe_offset, self.max_offset = offset, max_offset
        self._pack_offset, self._pack_messages = offset, messages
        # After data without our messages, the Broker has moved on by itself.
        self.expected_offset, self.has_moved = (None, False) if messages else (offset, True)
        return True

    def on_no_data(self, *, is_recent: bool = True) -> None:
        """Record that the get found no data to read. `is_recent` is as in `on_data`.

        A Broker that has deleted unread data may also find nothing behind it. So without `is_recent`, the partition is registered
        at `expected_offset`, which shows it.
        """
        self._transition(pack_event="no pack received")
        if not is_recent and self.expected_offset is not None and not self.has_moved and self.lease is READING:
            self._transition("forgotten")
            return
        self.has_moved, self._share = True, 0.0

    def on_get_refused(self) -> None:
        """Record that the Broker refused the get before it read anything."""
        self._transition(pack_event=f"refused after {self._pack_before_get.value}")

    def on_get_failed(self, *, is_abandoned: bool) -> None:
        """Record that the result of the get is unknown; if `is_abandoned`, the Broker may execute it later."""
        self._transition(pack_event="get failed")
        if is_abandoned:
            self.abandoned = max(self.abandoned, AbandonedRequests.READS)

    # --- the delivered pack -----------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Record that the reader confirmed the delivered pack; no request has reported this to the Broker yet.

        A detached pack is not confirmed by a request, but by registering where it ends. If this offset is unknown, the Broker
        sends the pack again.
        """
        if not self.is_detached:
            self._transition(pack_event="confirmed")
            return
        self._transition("forgotten" if self.pack_end is not None else "", "detached confirmed")
        if self.pack_end is not None:
            self.expected_offset = self.pack_end
            self.has_moved, self.is_position_unset = False, True
        if self.expected_offset is not None:
            self.safe_offset = self.expected_offset
        self.is_detached, self.pack_end = False, None

    def reject(self) -> None:
        """Record that the reader rejected the delivered pack, which has to be delivered again."""
        self._transition(pack_event="rejected")

    def on_commit(self, offset: int) -> None:
        """Record a successful commit; reading continues at `offset`, which its response contained."""
        if self.pack_state in (DELIVERED, CONFIRMED) and offset > self._pack_offset:
            self._share = self._pack_messages * INDEX_ENTRY_BYTES / (offset - self._pack_offset)
        expected = self.expected_offset if self.pack_state is NONE else None
        self._transition(pack_event="committed")
        if expected is not None and offset > expected and self._is_alone():
            if self.lease is READING:
                self._transition("forgotten")  # as in `on_data`: registering at `expected_offset` shows whether data was deleted
            return
        self.safe_offset = self.expected_offset = offset
        self.has_moved = False

    def on_commit_failed(self, *, is_abandoned: bool) -> None:
        """Record that a commit failed: the Broker may or may not confirm the pack, now or later.

        If the pack was delivered and not confirmed, it has to be delivered again in any case.
        """
        was_delivered = self.pack_state is DELIVERED
        self._transition(pack_event="commit failed")
        if is_abandoned:
            self.abandoned = max(self.abandoned, AbandonedRequests.READS)  # READS: gets and commits
        elif was_delivered:
            self._transition("forgotten")  # only a new registration can set the Broker's position back to the pack

    # --- stopping ---------------------------------------------------------------------------------------------------

    def stop(self, reason: GapError) -> None:
        """Stop reading until a seek, because data was deleted before it was read."""
        self._transition("gap")
        self.stop_reason = reason

    def want(self) -> bool:
        """Record that the partition is wanted for another member; return True if it may be kept for a while.

        It may not if the Broker has lost the registration: only another one, after which gets follow, would keep it.
        """
        if self.lease not in (READING, STOPPED):
            return False
        self._transition("wanted")
        return True

    def revoke(self, reason: LaneRevoked) -> None:
        """Record that the partition is revoked or about to be released; `reason` is what reading then raises."""
        if not self.is_over:
            self._transition("revoked")
            self.stop_reason = reason

    def release(self, reason: LaneRevoked) -> bool:
        """Enter the final state RELEASED; return True if the unregister request has to confirm the last pack."""
        is_confirmed = self.pack_state is CONFIRMED and not self.is_locating
        self._transition("released", "released")
        self.is_detached, self.pack_end = False, None
        if not isinstance(self.stop_reason, LaneRevoked):  # an earlier revocation stays the reason
            self.stop_reason = reason
        return is_confirmed

    def take_possible_gap(self) -> tuple[int, int] | None:
        """Return `possible_gap`, and reset it."""
        gap, self.possible_gap = self.possible_gap, None
        return gap

    def _is_loss(self, begin: int, end: int) -> bool:
        """Return True if the deleted data from `begin` to `end` contained messages that this partition had not confirmed."""
        entries = (end - begin) / INDEX_ENTRY_BYTES
        return self._is_alone() or entries * self._share >= DELETED_MESSAGES

    def _on_deleted(self, begin: int, end: int, *, is_certain: bool = False) -> None:
        """Handle that unread data of the store was deleted: stop if it had messages of this partition, else note a possible gap.

        The data may have been that of other partitions only, as behind an idle partition.
        """
        if not (is_certain or self._is_loss(begin, end)):
            self.possible_gap = (begin, end)
            return
        problem = (
            f"{self._name} lost data: offset {begin} was expected, but the Broker continued at offset {end}. "
            "The data between these offsets was deleted before it was read; give the topic a longer retention"
        )
        self.stop(GapError(problem, (end, 0)))
