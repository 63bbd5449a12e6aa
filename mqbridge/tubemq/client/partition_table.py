"""The states of one partition of a consumer, and what leads from one to another; `PartitionState` moves along them.

The lease, as far as we know what the Broker thinks:

    NEW        not registered yet
    READING    registered: gets may be sent
    FORGOTTEN  the Broker does not count it as ours: it is registered again before the next get
    STOPPED    data was lost before it was read: still ours and kept alive, but read again only after a seek
    REVOKED    taken away or being given back: nothing is read, the pack that is out may still be confirmed
    RELEASED   given back, or another's: nothing changes any more

The pack, which is what the Broker confirms when the next request says "last pack consumed":

    NONE       nothing
    ASKED      a get has no answer yet
    OUT        a pack that was handed out
    CONFIRMED  a pack that is consumed, which the Broker has not been told
    REJECTED   a pack that has to come again
    UNKNOWN    a get was given up or failed inside the Broker: it may have moved on to a pack that we never saw
"""

from enum import Enum, IntEnum


class Lease(Enum):
    """Whether the partition is ours."""

    NEW = "new"
    READING = "reading"
    FORGOTTEN = "forgotten"
    STOPPED = "stopped"
    REVOKED = "revoked"
    RELEASED = "released"


class PackState(Enum):
    """What the next request can confirm."""

    NONE = "none"
    ASKED = "asked"
    OUT = "out"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class Strays(IntEnum):
    """Requests of this run that were given up: none, gets or commits, registrations (which may move the position anywhere)."""

    NONE = 0
    READS = 1
    MOVES = 2


NEW, READING, FORGOTTEN, STOPPED, REVOKED, RELEASED = Lease
NONE, ASKED, OUT, CONFIRMED, REJECTED, UNKNOWN = PackState

LEASE_TABLE: dict[str, dict[Lease, Lease]] = {
    "registered": {
        NEW: READING,
        READING: READING,
        FORGOTTEN: READING,
        STOPPED: READING,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    "forgotten": {READING: FORGOTTEN, FORGOTTEN: FORGOTTEN, STOPPED: STOPPED, REVOKED: REVOKED, RELEASED: RELEASED},
    "gap": {READING: STOPPED, FORGOTTEN: STOPPED},
    "revoked": {
        NEW: REVOKED,
        READING: REVOKED,
        FORGOTTEN: RELEASED,  # there is nothing to give back
        STOPPED: REVOKED,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    "released": dict.fromkeys(Lease, RELEASED),
}

PACK_TABLE: dict[str, dict[PackState, PackState]] = {
    "asked": {NONE: ASKED, OUT: ASKED, CONFIRMED: ASKED, REJECTED: ASKED, UNKNOWN: ASKED},
    "found": {ASKED: OUT},
    "nothing": {ASKED: NONE},
    "get failed": {ASKED: UNKNOWN},
    # A get that was refused before the Broker read anything: what was to be said of the pack before it is still to be said.
    "refused after none": {ASKED: NONE},
    "refused after out": {ASKED: REJECTED},
    "refused after confirmed": {ASKED: CONFIRMED},
    "refused after rejected": {ASKED: REJECTED},
    "refused after unknown": {ASKED: UNKNOWN},
    "confirmed": {OUT: CONFIRMED},
    "rejected": {OUT: REJECTED},
    "committed": {NONE: NONE, OUT: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
    "commit failed": {NONE: NONE, OUT: REJECTED, CONFIRMED: CONFIRMED, REJECTED: REJECTED, UNKNOWN: UNKNOWN},
    "registered": {NONE: NONE, OUT: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
    "released": {NONE: NONE, ASKED: ASKED, OUT: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
}
