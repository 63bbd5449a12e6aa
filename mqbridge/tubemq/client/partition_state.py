"""The state of one held partition: its lease, its last pack, and its positions.

Only `PartitionState` changes this state, and it does no IO. A transition that is not in the tables (see `partition_transitions`)
raises LocalProtocolError.

A generation lasts from one registration to the next. A request is abandoned if its caller no longer waits for the response; it
may reach the Broker at any later time and move its position. So it ends the generation: the partition is registered again with
a new client id, and the Broker refuses the abandoned request (411 or 412) whenever it arrives.
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

    safe        offset before which all messages are delivered and confirmed: reading can always resume here
    expected    offset at which the next pack has to begin, if known: a Broker that begins later has deleted data
    max_offset  end of the store's index, from the Broker's last response
    """

    def __init__(self, name: str) -> None:
        self.lease, self.pack, self.abandoned = NEW, NONE, AbandonedRequests.NONE
        self.generation = 0
        """Number of registrations so far."""
        self.safe = self.max_offset = 0
        self.expected: int | None = None
        self.why: MqbridgeError | None = None
        """The reason why reading stopped: GapError in STOPPED, LaneRevoked in REVOKED and RELEASED."""
        self._name = name
        self._before_get = NONE

    def _move(self, lease: str = "", pack: str = "") -> None:
        try:
            new_lease = LEASE_TABLE[lease][self.lease] if lease else self.lease
            new_pack = PACK_TABLE[pack][self.pack] if pack else self.pack
        except KeyError as error:
            event = " and ".join(filter(None, (lease, pack)))
            problem = f"{self._name}: {event!r} cannot happen with lease {self.lease.value} and pack {self.pack.value}"
            raise LocalProtocolError(problem) from error
        self.lease, self.pack = new_lease, new_pack

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the partition is revoked or released."""
        return self.lease in (REVOKED, RELEASED)

    @property
    def is_registered(self) -> bool:
        """True if we have a registration at the Broker, as far as we know."""
        return self.lease in (READING, STOPPED, REVOKED) and self.generation > 0

    @property
    def must_register(self) -> bool:
        """True if the partition has to be registered before the next get; with a new client id if requests are `abandoned`."""
        return self.lease in (NEW, FORGOTTEN) or self.abandoned is not AbandonedRequests.NONE

    @property
    def is_settled(self) -> bool:
        """True if no get is in flight and no delivered pack waits to be confirmed or rejected."""
        return self.pack not in (FETCHING, DELIVERED)

    @property
    def must_unregister(self) -> bool:
        """True if the partition is revoked and the Broker may still have our registration."""
        return self.lease is REVOKED and (self.generation > 0 or self.abandoned is not AbandonedRequests.NONE)

    @property
    def can_query_position(self) -> bool:
        """True if only the Broker knows the current position and a commit can query it. Otherwise reading resumes at `safe`."""
        is_unknown = self.expected is None and self.pack in (CONFIRMED, UNKNOWN)
        return self.abandoned is AbandonedRequests.READS and self.lease is READING and is_unknown

    @property
    def resume_offset(self) -> int | None:
        """The offset at which to register again; None for the group's position at the Broker.

        A Broker that shuts down cleanly counts its last delivered pack as consumed. So its position is used only if our reader
        has confirmed that pack, too, and the end offset of the pack is unknown here.
        """
        if self.abandoned is AbandonedRequests.NONE and self.pack in (NONE, CONFIRMED):
            return self.expected
        return self.safe

    def raise_if_stopped(self) -> None:
        """Raise the reason if reading has stopped."""
        if self.why is not None:
            raise self.why

    def may_get(self) -> bool:
        """Return True if a get may be sent without another registration. Raises like `raise_if_stopped`."""
        self.raise_if_stopped()
        return not self.must_register

    # --- registrations ----------------------------------------------------------------------------------------------

    def registered(self, start: int, max_offset: int, wanted: int | None) -> None:
        """Start a new generation: the Broker registered us at offset `start`.

        If `start` is after `wanted`, the data in between was deleted: this is a gap.
        """
        self._move("registered", "registered" if self.pack is not FETCHING else "")
        self.generation += 1
        self.abandoned = AbandonedRequests.NONE
        self.safe = self.expected = start
        self.max_offset = max_offset
        if self.lease is READING:
            self.why = None
            if wanted is not None and start > wanted:
                self._gap(wanted, start)

    def registration_lost(self) -> None:
        """Record an abandoned request to register or unregister: it may move the position or end the lease at any later time."""
        self.abandoned = AbandonedRequests.MOVES

    def forgotten(self, generation: int) -> None:
        """Record that the Broker no longer has our registration; ignored if `generation` is an earlier one."""
        if generation == self.generation:
            self._move("forgotten")

    # --- gets -------------------------------------------------------------------------------------------------------

    def get_sent(self) -> bool:
        """Record that a get is sent; return True if it has to confirm the previous pack.

        Raises LocalProtocolError if the partition has to be registered again first.
        """
        if not self.may_get():
            raise LocalProtocolError(f"{self._name}: a get is not allowed before the partition is registered again")
        before = self.pack
        self._move(pack="get sent")
        self._before_get = before
        if before in (DELIVERED, REJECTED):
            self.expected = self.safe  # the same pack is delivered again, unless it was deleted
        return before is CONFIRMED

    def found(self, offset: int, max_offset: int, *, is_empty: bool) -> None:
        """Record that the get returned data read from `offset`.

        `is_empty` means that it contained no message for us; the Broker then confirms it by itself. Raises GapError if `offset`
        is after `expected`, and LaneRevoked if the partition was revoked meanwhile.
        """
        if self.is_over:  # the partition's next owner will read this pack
            self._move(pack="found nothing")
            self.raise_if_stopped()
        expected = self.expected
        if expected is not None and offset > expected:
            self._move(pack="found nothing")
            self._gap(expected, offset)
            self.raise_if_stopped()
        self._move(pack="found nothing" if is_empty else "found")
        self.safe, self.expected, self.max_offset = offset, None, max_offset

    def found_nothing(self) -> None:
        """Record that the get found nothing to read."""
        self._move(pack="found nothing")

    def get_refused(self) -> None:
        """Record that the Broker refused the get before it read anything."""
        self._move(pack=f"refused after {self._before_get.value}")

    def get_failed(self, *, is_abandoned: bool) -> None:
        """Record that the result of the get is unknown; if `is_abandoned`, the Broker may even execute it later."""
        self._move(pack="get failed")
        if is_abandoned:
            self.abandoned = max(self.abandoned, AbandonedRequests.READS)

    # --- the delivered pack -----------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Record that the reader confirmed the delivered pack."""
        self._move(pack="confirmed")

    def reject(self) -> None:
        """Record that the delivered pack has to be delivered again."""
        self._move(pack="rejected")

    def committed(self, offset: int) -> None:
        """Record a successful commit; reading continues at the `offset` of its response."""
        self._move(pack="committed")
        self.safe = self.expected = offset

    def commit_failed(self, *, is_abandoned: bool) -> None:
        """Record that a commit failed: the Broker may or may not confirm the pack, now or later.

        A delivered pack has to be delivered again in any case.
        """
        was_delivered = self.pack is DELIVERED
        self._move(pack="commit failed")
        if is_abandoned:
            self.abandoned = max(self.abandoned, AbandonedRequests.READS)
        elif was_delivered:
            self._move("forgotten")  # only a registration moves the Broker back to the pack

    # --- ends -------------------------------------------------------------------------------------------------------

    def stop(self, why: GapError) -> None:
        """Stop reading until a seek, because data was deleted before it was read."""
        self._move("gap")
        self.why = why

    def revoke(self, why: LaneRevoked) -> None:
        """Record that the partition is revoked or about to be released."""
        if not self.is_over:
            self._move("revoked")
            self.why = why

    def release(self, why: LaneRevoked) -> bool:
        """Enter the final state; return True if the unregister request has to confirm the last pack."""
        consumed = self.pack is CONFIRMED
        self._move("released", "released")
        if not isinstance(self.why, LaneRevoked):
            self.why = why
        return consumed

    def _gap(self, expected: int, offset: int) -> None:
        problem = (
            f"{self._name} lost data: expected offset {expected}, the Broker continued at {offset}. "
            "The data in between was deleted before it was read; give the topic a longer retention"
        )
        self.stop(GapError(problem, (offset, 0)))
