"""The state of one held partition: its lease, its last pack, and its positions.

A pack contains the messages of one response to a get. Only `PartitionState` changes this state, and it does no IO. Its methods
`on_...` record what happened. A transition that is not in the tables (see `partition_transitions`) raises LocalProtocolError.

A generation lasts from one registration to the next. A request is abandoned if its caller no longer waits for the response. It
may reach the Broker at any later time and move the group's position there. So an abandoned request ends the generation: the
partition is registered again with a new client id, and the Broker refuses the abandoned request (411 or 412) if it arrives later.

The lease is our registration at the Broker, which heartbeats renew.
"""

from mqbridge.errors import GapError, LaneRevoked, LocalProtocolError, MqbridgeError
from mqbridge.tubemq.client.partition_transitions import (
    CONFIRMED,
    DELIVERED,
    FETCHING,
    FORGOTTEN,
    LEASE_TABLE,
    NEW,
    NONE,
    PACK_TABLE,
    READING,
    REJECTED,
    RELEASED,
    REVOKED,
    STOPPED,
    UNKNOWN,
    AbandonedRequests,
)


class PartitionState:
    """State of the partition `name`. Positions are byte offsets in the index that all partitions of a store share.

    safe_offset      all messages before this offset are delivered and confirmed: reading can always resume here
    expected_offset  where the next pack has to begin, or None if unknown: a Broker that begins later has deleted data
    max_offset       end of the store's index, from the Broker's last response
    """

    def __init__(self, name: str) -> None:
        self.lease, self.pack_state = NEW, NONE
        """The states of the lease (only READING allows gets) and of the last pack; `partition_transitions` explains all."""
        self.abandoned = AbandonedRequests.NONE
        """The abandoned requests since the last registration: none, READS (gets or commits), or REGISTRATIONS."""
        self.generation = 0
        """Number of registrations so far."""
        self.safe_offset = self.max_offset = 0
        self.expected_offset: int | None = None
        self.stop_reason: MqbridgeError | None = None
        """Why reading stopped: GapError in STOPPED, LaneRevoked in REVOKED and RELEASED; None while reading goes on."""
        self._name = name
        self._pack_before_get = NONE
        """State of the previous pack when the last get was sent."""

    def _transition(self, lease_event: str = "", pack_event: str = "") -> None:
        """Apply an event to the lease, to the pack, or to both; an empty event changes nothing."""
        try:
            new_lease = LEASE_TABLE[lease_event][self.lease] if lease_event else self.lease
            new_pack = PACK_TABLE[pack_event][self.pack_state] if pack_event else self.pack_state
        except KeyError as error:
            event = " and ".join(filter(None, (lease_event, pack_event)))
            problem = f"{self._name}: {event!r} cannot happen with lease {self.lease.value} and pack {self.pack_state.value}"
            raise LocalProtocolError(problem) from error
        self.lease, self.pack_state = new_lease, new_pack

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the partition is revoked or released."""
        return self.lease in (REVOKED, RELEASED)

    @property
    def is_registered(self) -> bool:
        """True if we have a registration at the Broker, as far as we know."""
        # The generation is 0 if the partition was revoked before its first registration.
        return self.lease in (READING, STOPPED, REVOKED) and self.generation > 0

    @property
    def must_register(self) -> bool:
        """True if the partition has to be registered before the next get; with a new client id if requests are `abandoned`."""
        return self.lease in (NEW, FORGOTTEN) or self.abandoned is not AbandonedRequests.NONE

    @property
    def is_settled(self) -> bool:
        """True if no get is in flight and no delivered pack waits to be confirmed or rejected."""
        return self.pack_state not in (FETCHING, DELIVERED)

    @property
    def must_unregister(self) -> bool:
        """True if the partition is revoked and the Broker may still have our registration."""
        return self.lease is REVOKED and (self.generation > 0 or self.abandoned is not AbandonedRequests.NONE)

    @property
    def can_query_position(self) -> bool:
        """True if only the Broker knows where to continue, and the response to a commit can tell.

        If this is False and requests are abandoned, reading resumes at `safe_offset`.
        """
        is_unknown = self.expected_offset is None and self.pack_state in (CONFIRMED, UNKNOWN)
        return self.abandoned is AbandonedRequests.READS and self.lease is READING and is_unknown

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
        return not self.must_register

    # --- registrations ----------------------------------------------------------------------------------------------

    def on_registered(self, start: int, max_offset: int, requested: int | None) -> None:
        """Start a new generation: the Broker registered us at offset `start`.

        If `start` is after the `requested` offset, the data in between was deleted: this is a gap. With `requested` None any
        start is accepted.
        """
        # A get in flight changes the pack's state by itself, when it ends.
        self._transition("registered", "registered" if self.pack_state is not FETCHING else "")
        self.generation += 1
        self.abandoned = AbandonedRequests.NONE
        self.safe_offset = self.expected_offset = start
        self.max_offset = max_offset
        if self.lease is READING:  # not if the partition was revoked meanwhile
            self.stop_reason = None
            if requested is not None and start > requested:
                self._stop_at_gap(requested, start)

    def on_registration_abandoned(self) -> None:
        """Record that a request to register or unregister was abandoned.

        If it reaches the Broker later, it may move the group's position or end the lease.
        """
        self.abandoned = AbandonedRequests.REGISTRATIONS

    def on_registration_forgotten(self, generation: int) -> None:
        """Record that the Broker no longer has our registration; ignored if `generation` is an earlier one."""
        if generation == self.generation:
            self._transition("forgotten")

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
            self.expected_offset = self.safe_offset  # the Broker sends the same pack again, unless it was deleted
        return before is CONFIRMED

    def on_data(self, offset: int, max_offset: int, *, is_empty: bool) -> None:
        """Record that the get returned data read from `offset`.

        `is_empty` means that no message in the data matches our filter: there is no pack to confirm, since the Broker confirms
        the data by itself. Raises GapError if `offset` is after `expected_offset`, and LaneRevoked if the partition was revoked
        meanwhile.
        """
        if self.is_over:  # the partition's next owner will read this pack
            self._transition(pack_event="no pack received")
            self.raise_if_stopped()
        expected = self.expected_offset
        if expected is not None and offset > expected:
            self._transition(pack_event="no pack received")
            self._stop_at_gap(expected, offset)
            self.raise_if_stopped()
        self._transition(pack_event="no pack received" if is_empty else "pack received")
        self.safe_offset, self.expected_offset, self.max_offset = offset, None, max_offset

    def on_no_data(self) -> None:
        """Record that the get found no data to read."""
        self._transition(pack_event="no pack received")

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
        """Record that the reader confirmed the delivered pack; no request has reported this to the Broker yet."""
        self._transition(pack_event="confirmed")

    def reject(self) -> None:
        """Record that the reader rejected the delivered pack, which has to be delivered again."""
        self._transition(pack_event="rejected")

    def on_commit(self, offset: int) -> None:
        """Record a successful commit; reading continues at `offset`, which its response contained."""
        self._transition(pack_event="committed")
        self.safe_offset = self.expected_offset = offset

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

    def revoke(self, reason: LaneRevoked) -> None:
        """Record that the partition is revoked or about to be released; `reason` is what reading then raises."""
        if not self.is_over:
            self._transition("revoked")
            self.stop_reason = reason

    def release(self, reason: LaneRevoked) -> bool:
        """Enter the final state RELEASED; return True if the unregister request has to confirm the last pack."""
        is_confirmed = self.pack_state is CONFIRMED
        self._transition("released", "released")
        if not isinstance(self.stop_reason, LaneRevoked):  # an earlier revocation stays the reason
            self.stop_reason = reason
        return is_confirmed

    def _stop_at_gap(self, expected: int, offset: int) -> None:
        problem = (
            f"{self._name} lost data: offset {expected} was expected, but the Broker continued at offset {offset}. "
            "The data between these offsets was deleted before it was read; give the topic a longer retention"
        )
        self.stop(GapError(problem, (offset, 0)))
