"""The state of one partition of a consumer: whether it is ours, which pack is out, and how far reading has come.

Nothing else writes these, and nothing here does IO. A transition that is not in the tables (see `partition_table`) raises
LocalProtocolError.

A run lasts from one registration to the next. A request that was given up may still reach the Broker at any later time and move
its position; a run with such strays is over. The partition is then registered under a client id that was never used for it, so
that the Broker refuses the strays (411 or 412) whenever they arrive.
"""

from mqbridge.errors import GapError, LaneRevoked, LocalProtocolError, MqbridgeError
from mqbridge.tubemq.client.partition_table import (
    ASKED,
    CONFIRMED,
    FORGOTTEN,
    LEASE_TABLE,
    NEW,
    NONE,
    OUT,
    PACK_TABLE,
    READING,
    REJECTED,
    RELEASED,
    REVOKED,
    STOPPED,
    UNKNOWN,
    Strays,
)


class PartitionState:
    """`name` is for errors. Positions are byte offsets of the index that the partitions of a store share: they only grow.

    safe        everything before it was handed out and confirmed; reading may go on here whatever happened
    expected    where the next pack has to begin, while that is known: a Broker that begins later has lost data
    max_offset  the end of the store's index when the Broker last said it
    """

    def __init__(self, name: str) -> None:
        self.lease, self.pack, self.strays = NEW, NONE, Strays.NONE
        self.run = 0
        """Registrations so far."""
        self.safe = self.max_offset = 0
        self.expected: int | None = None
        self.why: MqbridgeError | None = None
        """Why nothing is read: GapError while STOPPED, LaneRevoked from REVOKED on."""
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

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it was taken away or given back."""
        return self.lease in (REVOKED, RELEASED)

    @property
    def is_registered(self) -> bool:
        """Whether its Broker counts it as ours, as far as we know."""
        return self.lease in (READING, STOPPED, REVOKED) and self.run > 0

    @property
    def must_register(self) -> bool:
        """Whether no get may be sent before another registration; with `strays` under a new client id."""
        return self.lease in (NEW, FORGOTTEN) or self.strays is not Strays.NONE

    @property
    def is_settled(self) -> bool:
        """No get is on its way and no pack is out."""
        return self.pack not in (ASKED, OUT)

    @property
    def must_give_back(self) -> bool:
        """Whether the Broker may still count it as ours although we are done with it."""
        return self.lease is REVOKED and (self.run > 0 or self.strays is not Strays.NONE)

    @property
    def can_ask(self) -> bool:
        """Whether the Broker knows better than we do where to go on: then a commit tells it. Else `safe` counts."""
        is_unsure = self.expected is None and self.pack in (CONFIRMED, UNKNOWN)
        return self.strays is Strays.READS and self.lease is READING and is_unsure

    @property
    def resume_at(self) -> int | None:
        """The offset to register at again; None: where the Broker has the group.

        A Broker that is stopped in order counts the pack that it handed out last as consumed. So its position counts only when
        that pack is confirmed here, too, and when we do not know ourselves where it ended.
        """
        if self.strays is Strays.NONE and self.pack in (NONE, CONFIRMED):
            return self.expected
        return self.safe

    def check(self) -> None:
        """Raises why nothing can be read."""
        if self.why is not None:
            raise self.why

    def may_ask(self) -> bool:
        """Whether a get may be sent before another registration. Raises like `check`."""
        self.check()
        return not self.must_register

    # --- registrations ----------------------------------------------------------------------------------------------

    def registered(self, given: int, max_offset: int, asked: int | None) -> None:
        """The Broker took us at `given`: a new run. A `given` beyond `asked` is a gap: what lies between was deleted."""
        self._move("registered", "registered" if self.pack is not ASKED else "")
        self.run += 1
        self.strays = Strays.NONE
        self.safe = self.expected = given
        self.max_offset = max_offset
        if self.lease is READING:
            self.why = None
            if asked is not None and given > asked:
                self._gap(asked, given)

    def registration_lost(self) -> None:
        """A request to register or to give back was given up: at any later time it may move the position, or end the lease."""
        self.strays = Strays.MOVES

    def forgotten(self, run: int) -> None:
        """The Broker said that it does not know us. What was said of an earlier run is nothing to this one."""
        if run == self.run:
            self._move("forgotten")

    # --- gets -------------------------------------------------------------------------------------------------------

    def asked(self) -> bool:
        """A get goes out; whether it confirms the pack before. A run with strays sends none."""
        if not self.may_ask():
            raise LocalProtocolError(f"{self._name}: a get before it is registered again")
        before = self.pack
        self._move(pack="asked")
        self._before_get = before
        if before in (OUT, REJECTED):
            self.expected = self.safe  # the same pack again, or it is gone
        return before is CONFIRMED

    def found(self, offset: int, max_offset: int, *, is_empty: bool) -> None:
        """The get read from `offset`. Raises GapError when that is past `expected`, LaneRevoked when it came too late.

        An empty read found nothing of ours: the Broker has then confirmed it by itself.
        """
        if self.is_over:  # the next owner reads it
            self._move(pack="nothing")
            self.check()
        expected = self.expected
        if expected is not None and offset > expected:
            self._move(pack="nothing")
            self._gap(expected, offset)
            self.check()
        self._move(pack="nothing" if is_empty else "found")
        self.safe, self.expected, self.max_offset = offset, None, max_offset

    def found_nothing(self) -> None:
        """There is nothing to read now."""
        self._move(pack="nothing")

    def get_refused(self) -> None:
        """The get was refused before anything was read."""
        self._move(pack=f"refused after {self._before_get.value}")

    def get_failed(self, *, given_up: bool) -> None:
        """Nobody knows what the get read; given up, it may even be carried out later."""
        self._move(pack="get failed")
        if given_up:
            self.strays = max(self.strays, Strays.READS)

    # --- the pack that is out ---------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """It is consumed."""
        self._move(pack="confirmed")

    def reject(self) -> None:
        """It has to come again."""
        self._move(pack="rejected")

    def committed(self, offset: int) -> None:
        """A commit said where reading goes on."""
        self._move(pack="committed")
        self.safe = self.expected = offset

    def commit_failed(self, *, given_up: bool) -> None:
        """The Broker may have confirmed the pack or not, now or later. One that was out has to come again in any case."""
        was_out = self.pack is OUT
        self._move(pack="commit failed")
        if given_up:
            self.strays = max(self.strays, Strays.READS)
        elif was_out:
            self._move("forgotten")  # only a registration takes the Broker back to it

    # --- ends -------------------------------------------------------------------------------------------------------

    def stop(self, why: GapError) -> None:
        """Data was lost: nothing is read before a seek."""
        self._move("gap")
        self.why = why

    def revoke(self, why: LaneRevoked) -> None:
        """It is not ours any more, or not for long; also when it was stopped."""
        if not self.is_over:
            self._move("revoked")
            self.why = why

    def release(self, why: LaneRevoked) -> bool:
        """It is over; whether the pack that was out is consumed, which goes with giving it back."""
        consumed = self.pack is CONFIRMED
        self._move("released", "released")
        if not isinstance(self.why, LaneRevoked):
            self.why = why
        return consumed

    def _gap(self, expected: int, given: int) -> None:
        problem = (
            f"{self._name} lost data: reading was to go on at offset {expected}, the Broker went on at {given}. "
            "What lies between was deleted before it was read; give the topic a longer retention"
        )
        self.stop(GapError(problem, (given, 0)))
