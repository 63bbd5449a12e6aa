"""The states of one queue while it is ours, and what leads from one to another; `QueueState` holds the positions with them.

ASSIGNED --START--> READING --GAP--> AT_GAP, --REFUSE--> REFUSED       these three own the queue and hand out what waits
^----------MOVE---------------'                 a seek, a rewind or a reset goes on reading
any of these --RELEASE--> RELEASING                                    nothing is handed out or acknowledged any more
any of these --REVOKE--> SETTLING --SETTLE--> RELEASING                what is out may still be acknowledged
SETTLING, RELEASING --RESET--> the same                                the offset that is told is what is committed last
RELEASING --GIVEN_BACK--> RELEASED,  any --LOSE_LOCK--> LOST           LOST: another member may read on, nothing is committed
"""

from enum import Enum


class State(Enum):
    """What the queue is to us; see the module."""

    ASSIGNED = "assigned"
    READING = "reading"
    AT_GAP = "at a gap"
    REFUSED = "refused"
    SETTLING = "settling"
    RELEASING = "releasing"
    RELEASED = "released"
    LOST = "lost"


class Event(Enum):
    """What happens to it."""

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

TABLE: dict[tuple[State, Event], State] = {
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
"""What is not here raises LocalProtocolError."""

HANDING_OUT = frozenset({S.READING, S.AT_GAP, S.REFUSED})
ACKNOWLEDGING = HANDING_OUT | {S.SETTLING}
