"""State tables of a held partition: states and transitions, used by `PartitionState`.

States of the lease, which is our registration at the Broker:

    NEW        not registered yet
    READING    registered: gets may be sent
    FORGOTTEN  the Broker no longer has our registration, or the Broker's position has to be set: register again before the next
               get
    STOPPED    data was deleted before it was read: heartbeats still renew the lease, but reading continues only after a seek
    REVOKED    revoked or being released: no more gets, but the delivered pack may still be confirmed
    RELEASED   released, or lost to another consumer: final

States of the last pack. The Broker counts this pack as consumed when the next request has the flag "last pack consumed":

    NONE       there is no pack
    FETCHING   a get is in flight
    DELIVERED  delivered to the reader, neither confirmed nor rejected
    CONFIRMED  confirmed by the reader, but not yet at the Broker
    REJECTED   has to be delivered again
    UNKNOWN    a get was abandoned or failed inside the Broker: the Broker's position may be after a pack that we never received
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


NEW, READING, FORGOTTEN, STOPPED, REVOKED, RELEASED = Lease
NONE, FETCHING, DELIVERED, CONFIRMED, REJECTED, UNKNOWN = PackState

# Both tables: event -> state before -> state after. A missing entry means that the event cannot happen in that state.
LEASE_TABLE: dict[str, dict[Lease, Lease]] = {
    "registered": {
        NEW: READING,
        READING: READING,
        FORGOTTEN: READING,
        STOPPED: READING,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    # STOPPED stays: reading continues only after a seek, and a seek registers again in any case.
    "forgotten": {READING: FORGOTTEN, FORGOTTEN: FORGOTTEN, STOPPED: STOPPED, REVOKED: REVOKED, RELEASED: RELEASED},
    "gap": {READING: STOPPED, FORGOTTEN: STOPPED},
    "revoked": {
        NEW: REVOKED,  # a first request to register may have been sent
        READING: REVOKED,
        FORGOTTEN: REVOKED,  # the request to unregister tells whether the Broker has lost the registration
        STOPPED: REVOKED,
        REVOKED: REVOKED,
        RELEASED: RELEASED,
    },
    "released": dict.fromkeys(Lease, RELEASED),
}

PACK_TABLE: dict[str, dict[PackState, PackState]] = {
    "get sent": {NONE: FETCHING, DELIVERED: FETCHING, CONFIRMED: FETCHING, REJECTED: FETCHING, UNKNOWN: FETCHING},
    "pack received": {FETCHING: DELIVERED},
    "no pack received": {FETCHING: NONE},
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
