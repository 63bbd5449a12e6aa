"""The state of one held partition: its lease, its last pack, and its positions.

Only this class changes them, and it does no IO. A transition that is not in the tables (see `partition_transitions`) raises
LocalProtocolError.

A generation lasts from one registration to the next. An abandoned request may still reach the Broker at any later time and move
its position, so it ends the generation: the partition is then registered under a client id that was never used for it, and the
Broker refuses the abandoned requests (411 or 412) whenever they arrive.
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
    """`name` is for errors. Positions are byte offsets in the index that the partitions of a store share: they only grow.

    safe        everything before it was delivered and confirmed; resuming here is always safe
    expected    where the next pack has to begin, if known: a Broker that begins later has lost data
    max_offset  the end of the store's index in the Broker's last response
    """

    def __init__(self, name: str) -> None:
        self.lease, self.pack, self.abandoned = NEW, NONE, AbandonedRequests.NONE
        self.generation = 0
        """Number of registrations so far."""
        self.safe = self.max_offset = 0
        self.expected: int | None = None
        self.why: MqbridgeError | None = None
        """Why reading stopped: GapError while STOPPED, LaneRevoked from REVOKED on."""
        self._name = name
        self._before_get = NONE

    def _move(self, lease: str = "", pack: str = "") -> None:
        try:
            new_lease = LEASE_TABLE[lease][self.lease] if lease else self.lease
            new_pack = PACK_TABLE[pack][self.pack] if pack else self.pack
        except KeyError as error:
            event = " and ".join(filter(None, (lease, pack)))
            problem = f"{self._name}: {event!r} cannot happen while {self.lease.value} with pack {self.pack.value}"
            raise LocalProtocolError(problem) from error
        self.lease, self.pack = new_lease, new_pack

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the partition is revoked or released."""
        return self.lease in (REVOKED, RELEASED)

    @property
    def is_registered(self) -> bool:
        """True if the Broker has us registered, as far as we know."""
        return self.lease in (READING, STOPPED, REVOKED) and self.generation > 0

    @property
    def must_register(self) -> bool:
        """True if no get may be sent before another registration; with `abandoned` requests under a new client id."""
        return self.lease in (NEW, FORGOTTEN) or self.abandoned is not AbandonedRequests.NONE

    @property
    def is_settled(self) -> bool:
        """True if no get is in flight and no delivered pack is unsettled."""
        return self.pack not in (FETCHING, DELIVERED)

    @property
    def must_unregister(self) -> bool:
        """True if the Broker may still have us registered for a revoked partition."""
        return self.lease is REVOKED and (self.generation > 0 or self.abandoned is not AbandonedRequests.NONE)

    @property
    def can_query_position(self) -> bool:
        """True if only the Broker knows the current position: a commit returns it. Otherwise reading resumes at `safe`."""
        is_unsure = self.expected is None and self.pack in (CONFIRMED, UNKNOWN)
        return self.abandoned is AbandonedRequests.READS and self.lease is READING and is_unsure

    @property
    def resume_offset(self) -> int | None:
        """The offset at which to register again; None for the group's position at the Broker.

        A Broker that shuts down cleanly counts its last delivered pack as consumed. So its position is used only if that pack is
        confirmed here, too, and if we do not know ourselves where it ended.
        """
        if self.abandoned is AbandonedRequests.NONE and self.pack in (NONE, CONFIRMED):
            return self.expected
        return self.safe

    def raise_if_stopped(self) -> None:
        """Raise the reason if nothing can be read."""
        if self.why is not None:
            raise self.why

    def may_get(self) -> bool:
        """Return True if a get may be sent without another registration. Raises like `check`."""
        self.raise_if_stopped()
        return not self.must_register

    # --- registrations ----------------------------------------------------------------------------------------------

    def registered(self, given: int, max_offset: int, asked: int | None) -> None:
        """Start a new generation: the Broker registered us at `given`. A `given` beyond `asked` is a gap: data was deleted."""
        self._move("registered", "registered" if self.pack is not FETCHING else "")
        self.generation += 1
        self.abandoned = AbandonedRequests.NONE
        self.safe = self.expected = given
        self.max_offset = max_offset
        if self.lease is READING:
            self.why = None
            if asked is not None and given > asked:
                self._gap(asked, given)

    def registration_lost(self) -> None:
        """Note an abandoned request to register or unregister: it may move the position, or end the lease, at any later time."""
        self.abandoned = AbandonedRequests.MOVES

    def forgotten(self, generation: int) -> None:
        """Note that the Broker no longer knows our registration; ignored if said of an earlier generation."""
        if generation == self.generation:
            self._move("forgotten")

    # --- gets -------------------------------------------------------------------------------------------------------

    def get_sent(self) -> bool:
        """Note that a get is sent; return True if it confirms the previous pack. Not allowed after abandoned requests."""
        if not self.may_get():
            raise LocalProtocolError(f"{self._name}: a get before it is registered again")
        before = self.pack
        self._move(pack="asked")
        self._before_get = before
        if before in (DELIVERED, REJECTED):
            self.expected = self.safe  # the same pack comes again, or it was deleted
        return before is CONFIRMED

    def found(self, offset: int, max_offset: int, *, is_empty: bool) -> None:
        """Note that the get read from `offset`. Raises GapError if that is past `expected`, LaneRevoked if it came too late.

        A successful read may hold no message of ours: the Broker has then confirmed it by itself.
        """
        if self.is_over:  # the next owner reads it
            self._move(pack="nothing")
            self.raise_if_stopped()
        expected = self.expected
        if expected is not None and offset > expected:
            self._move(pack="nothing")
            self._gap(expected, offset)
            self.raise_if_stopped()
        self._move(pack="nothing" if is_empty else "found")
        self.safe, self.expected, self.max_offset = offset, None, max_offset

    def found_nothing(self) -> None:
        """Note that the get found nothing to read."""
        self._move(pack="nothing")

    def get_refused(self) -> None:
        """Note that the get was refused before anything was read."""
        self._move(pack=f"refused after {self._before_get.value}")

    def get_failed(self, *, is_abandoned: bool) -> None:
        """Note that the result of the get is unknown; if abandoned (`is_abandoned`), it may even be carried out later."""
        self._move(pack="get failed")
        if is_abandoned:
            self.abandoned = max(self.abandoned, AbandonedRequests.READS)

    # --- the delivered pack -----------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Note that the delivered pack is consumed."""
        self._move(pack="confirmed")

    def reject(self) -> None:
        """Note that the delivered pack has to come again."""
        self._move(pack="rejected")

    def committed(self, offset: int) -> None:
        """Note a commit, which returned where reading continues."""
        self._move(pack="committed")
        self.safe = self.expected = offset

    def commit_failed(self, *, is_abandoned: bool) -> None:
        """Note that the Broker may or may not confirm the pack, now or later. A delivered one has to come again in any case."""
        was_out = self.pack is DELIVERED
        self._move(pack="commit failed")
        if is_abandoned:
            self.abandoned = max(self.abandoned, AbandonedRequests.READS)
        elif was_out:
            self._move("forgotten")  # only a registration moves the Broker back to it

    # --- ends -------------------------------------------------------------------------------------------------------

    def stop(self, why: GapError) -> None:
        """Stop reading until a seek: data was lost."""
        self._move("gap")
        self.why = why

    def revoke(self, why: LaneRevoked) -> None:
        """Note that the partition is revoked or about to be released; also if it was stopped."""
        if not self.is_over:
            self._move("revoked")
            self.why = why

    def release(self, why: LaneRevoked) -> bool:
        """Enter the final state; return True if the last pack is consumed, which the unregistration tells the Broker."""
        consumed = self.pack is CONFIRMED
        self._move("released", "released")
        if not isinstance(self.why, LaneRevoked):
            self.why = why
        return consumed

    def _gap(self, expected: int, given: int) -> None:
        problem = (
            f"{self._name} lost data: expected offset {expected}, the Broker continued at {given}. "
            "The data in between was deleted before it was read; give the topic a longer retention"
        )
        self.stop(GapError(problem, (given, 0)))
