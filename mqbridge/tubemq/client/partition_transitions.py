"""State tables of a held partition: states and transitions, used by `PartitionState`.

The lease, as far as we know the Broker's view:

    NEW        not registered yet
    READING    registered: gets may be sent
    FORGOTTEN  the Broker no longer knows our registration: the partition is registered again before the next get
    STOPPED    data was lost before it was read: still held and kept alive, but read again only after a seek
    REVOKED    revoked or being released: nothing is read, the delivered pack may still be confirmed
    RELEASED   released, or lost to another consumer: final

The last pack, which the Broker confirms when the next request says "last pack consumed":

    NONE       nothing
    FETCHING   a get is in flight
    DELIVERED  delivered to the reader, not settled yet
    CONFIRMED  consumed; the Broker has not been told yet
    REJECTED   has to come again
    UNKNOWN    a get was abandoned or failed inside the Broker, which may have moved on to a pack that never arrived
"""

from enum import Enum, IntEnum


class Lease(Enum):
    """State of our registration at the Broker."""

    NEW = "new"
    READING = "reading"
    FORGOTTEN = "forgotten"
    STOPPED = "stopped"
    REVOKED = "revoked"
    RELEASED = "released"


class PackState(Enum):
    """State of the last pack, which the next request may confirm."""

    NONE = "none"
    FETCHING = "asked"
    DELIVERED = "out"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class AbandonedRequests(IntEnum):
    """Abandoned requests of this generation: none, gets or commits, or registrations (which may move the position anywhere)."""

    NONE = 0
    READS = 1
    MOVES = 2


NEW, READING, FORGOTTEN, STOPPED, REVOKED, RELEASED = Lease
NONE, FETCHING, DELIVERED, CONFIRMED, REJECTED, UNKNOWN = PackState

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
        FORGOTTEN: RELEASED,  # there is nothing to unregister
        STOPPED: REVOKED,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    "released": dict.fromkeys(Lease, RELEASED),
}

PACK_TABLE: dict[str, dict[PackState, PackState]] = {
    "asked": {NONE: FETCHING, DELIVERED: FETCHING, CONFIRMED: FETCHING, REJECTED: FETCHING, UNKNOWN: FETCHING},
    "found": {FETCHING: DELIVERED},
    "nothing": {FETCHING: NONE},
    "get failed": {FETCHING: UNKNOWN},
    # A get refused before the Broker read anything: the previous pack is still to be confirmed or delivered again.
    "refused after none": {FETCHING: NONE},
    "refused after out": {FETCHING: REJECTED},
    "refused after confirmed": {FETCHING: CONFIRMED},
    "refused after rejected": {FETCHING: REJECTED},
    "refused after unknown": {FETCHING: UNKNOWN},
    "confirmed": {DELIVERED: CONFIRMED},
    "rejected": {DELIVERED: REJECTED},
    "committed": {NONE: NONE, DELIVERED: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
    "commit failed": {NONE: NONE, DELIVERED: REJECTED, CONFIRMED: CONFIRMED, REJECTED: REJECTED, UNKNOWN: UNKNOWN},
    "registered": {NONE: NONE, DELIVERED: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
    "released": {NONE: NONE, FETCHING: FETCHING, DELIVERED: NONE, CONFIRMED: NONE, REJECTED: NONE, UNKNOWN: NONE},
}
