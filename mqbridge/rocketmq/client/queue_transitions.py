"""The states of one assigned queue and their transitions; `QueueState` holds the offsets.

ASSIGNED --START--> READING --GAP--> AT_GAP, --REFUSE--> REFUSED       these three own the queue and hand out waiting records
^----------MOVE---------------'                 a seek, a rewind or a reset continues reading
any of these --RELEASE--> RELEASING                                    nothing is handed out or acknowledged from now on
any of these --REVOKE--> SETTLING --SETTLE--> RELEASING                messages in flight may still be acknowledged
SETTLING, RELEASING --RESET--> the same                                the offset of the reset is the last commit
RELEASING --GIVEN_BACK--> RELEASED,  any --LOSE_LOCK--> LOST           LOST: another member may read on, nothing is committed
"""

from enum import Enum


class State(Enum):
    """State of an assigned queue; see the module."""

    ASSIGNED = "assigned"
    READING = "reading"
    AT_GAP = "at a gap"
    REFUSED = "refused"
    SETTLING = "settling"
    RELEASING = "releasing"
    RELEASED = "released"
    LOST = "lost"


class Event(Enum):
    """Event that changes the state."""

    START = "start"
    ANSWER = "answer"
    MOVE = "move"
    GAP = "gap"
    REFUSE = "refuse"
    REVOKE = "revoke"
    SETTLE = "settle"
    RELEASE = "release"
    RESET = "reset"
    GIVEN_BACK = "given back"
    LOSE_LOCK = "lose lock"


S, E = State, Event

TRANSITIONS: dict[tuple[State, Event], State] = {
    (S.ASSIGNED, E.START): S.READING,
    (S.READING, E.ANSWER): S.READING,
    (S.READING, E.MOVE): S.READING,
    (S.AT_GAP, E.MOVE): S.READING,
    (S.REFUSED, E.MOVE): S.READING,
    (S.READING, E.GAP): S.AT_GAP,
    (S.READING, E.REFUSE): S.REFUSED,
    (S.READING, E.REVOKE): S.SETTLING,
    (S.AT_GAP, E.REVOKE): S.SETTLING,
    (S.REFUSED, E.REVOKE): S.SETTLING,
    (S.SETTLING, E.SETTLE): S.RELEASING,
    (S.READING, E.RELEASE): S.RELEASING,
    (S.AT_GAP, E.RELEASE): S.RELEASING,
    (S.REFUSED, E.RELEASE): S.RELEASING,
    (S.SETTLING, E.RESET): S.SETTLING,
    (S.RELEASING, E.RESET): S.RELEASING,
    (S.RELEASING, E.GIVEN_BACK): S.RELEASED,
    (S.READING, E.LOSE_LOCK): S.LOST,
    (S.AT_GAP, E.LOSE_LOCK): S.LOST,
    (S.REFUSED, E.LOSE_LOCK): S.LOST,
    (S.SETTLING, E.LOSE_LOCK): S.LOST,
    (S.RELEASING, E.LOSE_LOCK): S.LOST,
}
"""Any other event raises LocalProtocolError."""

HANDING_OUT = frozenset({S.READING, S.AT_GAP, S.REFUSED})
ACKNOWLEDGING = HANDING_OUT | {S.SETTLING}
