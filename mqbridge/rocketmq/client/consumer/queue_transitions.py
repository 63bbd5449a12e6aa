"""The states of one assigned queue and their transitions. `QueueState` has the state and the offsets of a queue.

A new queue is ASSIGNED until START, which follows at once. READING pulls and hands out records. AT_GAP and REFUSED do not pull,
but still hand out buffered records. "Owned" stands for READING, AT_GAP and REFUSED. A queue that is LEAVING is kept, with its
lock, for messages in flight: it neither pulls nor hands out. In SETTLING, messages in flight may still be acknowledged, but the
queue is no longer ours; in RELEASING, only the last commit and the unlock remain to be done.

ASSIGNED --START--> READING
READING --RESPONSE--> READING            the response to a pull
READING --GAP--> AT_GAP                  messages are missing
READING --REFUSE--> REFUSED              the broker refuses pulls, and a retry would not help
owned --MOVE--> READING                  a seek, a rewind or a reset by an administrator: reading continues at another offset
owned --ANNOUNCE--> LEAVING              the queue will belong to another member; its user decides when, within a time
owned --REVOKE--> SETTLING               the queue now belongs to another member
SETTLING --SETTLE--> RELEASING           all messages are acknowledged, or we no longer wait for that
owned, LEAVING --RELEASE--> RELEASING    the consumer is closed, or releases the queue itself, or the time to leave has passed
LEAVING, SETTLING, RELEASING --RESET--> the same
                                         an administrator's reset during the release: its offset becomes the last commit
RELEASING --FINISH_RELEASE--> RELEASED
owned, LEAVING, SETTLING, RELEASING --LOSE_LOCK--> LOST
                                         nothing is committed, because another member may be reading the queue already
"""

from enum import Enum


class State(Enum):
    """State of an assigned queue; the module's docstring has the transitions."""

    ASSIGNED = "assigned"
    READING = "reading"
    AT_GAP = "at a gap"
    REFUSED = "refused"
    LEAVING = "leaving"
    SETTLING = "settling"
    RELEASING = "releasing"
    RELEASED = "released"
    LOST = "lost"


class Event(Enum):
    """Event that changes the state. The value completes the error "the queue cannot …"."""

    START = "start"
    RESPONSE = "get a response"
    MOVE = "move"
    GAP = "stop at a gap"
    REFUSE = "be refused"
    ANNOUNCE = "announce that it leaves"
    REVOKE = "be revoked"
    SETTLE = "settle"
    RELEASE = "be released"
    RESET = "be reset"
    FINISH_RELEASE = "finish its release"
    LOSE_LOCK = "lose its lock"


S, E = State, Event  # short names for the table

TRANSITIONS: dict[tuple[State, Event], State] = {
    (S.ASSIGNED, E.START): S.READING,
    (S.READING, E.RESPONSE): S.READING,
    (S.READING, E.MOVE): S.READING,
    (S.AT_GAP, E.MOVE): S.READING,
    (S.REFUSED, E.MOVE): S.READING,
    (S.READING, E.GAP): S.AT_GAP,
    (S.READING, E.REFUSE): S.REFUSED,
    (S.READING, E.ANNOUNCE): S.LEAVING,
    (S.AT_GAP, E.ANNOUNCE): S.LEAVING,
    (S.REFUSED, E.ANNOUNCE): S.LEAVING,
    (S.READING, E.REVOKE): S.SETTLING,
    (S.AT_GAP, E.REVOKE): S.SETTLING,
    (S.REFUSED, E.REVOKE): S.SETTLING,
    (S.SETTLING, E.SETTLE): S.RELEASING,
    (S.READING, E.RELEASE): S.RELEASING,
    (S.AT_GAP, E.RELEASE): S.RELEASING,
    (S.REFUSED, E.RELEASE): S.RELEASING,
    (S.LEAVING, E.RELEASE): S.RELEASING,
    (S.LEAVING, E.RESET): S.LEAVING,
    (S.SETTLING, E.RESET): S.SETTLING,
    (S.RELEASING, E.RESET): S.RELEASING,
    (S.RELEASING, E.FINISH_RELEASE): S.RELEASED,
    (S.READING, E.LOSE_LOCK): S.LOST,
    (S.AT_GAP, E.LOSE_LOCK): S.LOST,
    (S.REFUSED, E.LOSE_LOCK): S.LOST,
    (S.LEAVING, E.LOSE_LOCK): S.LOST,
    (S.SETTLING, E.LOSE_LOCK): S.LOST,
    (S.RELEASING, E.LOSE_LOCK): S.LOST,
}
"""The next state by state and event. `QueueState` ignores any other event, or raises LocalProtocolError for it."""

HANDING_OUT = frozenset({S.READING, S.AT_GAP, S.REFUSED})
"""The "owned" states of the transitions above: records are handed out."""
OURS = HANDING_OUT | {S.ASSIGNED, S.LEAVING}
"""States of a queue that is neither revoked nor lost nor released."""
ACKNOWLEDGING = HANDING_OUT | {S.LEAVING, S.SETTLING}
"""States in which acknowledgements count."""
