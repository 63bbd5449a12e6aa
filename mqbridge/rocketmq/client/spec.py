"""What a consumer is asked to do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.broadcast import BroadcastOffsets
from mqbridge.rocketmq.client.rebalance import Strategy, averagely
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue

MAX_BYTES = 64 << 20
MAX_MSGS = 4096
"""Asked for in one pull. Brokers give 32 by default, see `pulling`."""
READER_GROUP = "TOOLS_CONSUMER"
"""Readers without a group use this one, which every broker has from its start: nothing is left behind of them."""


class Model(Enum):
    """Who reads which queues."""

    CLUSTERING = "CLUSTERING"
    """The members of the group divide them; offsets are kept at the brokers."""
    BROADCASTING = "BROADCASTING"
    """Every member reads all; offsets are kept by the caller."""
    ASSIGNED = "ASSIGNED"
    """The queues that the caller names, without membership."""


class StartOffset(Enum):
    """Where a queue begins that has no offset yet, as heartbeats say it."""

    EARLIEST = "CONSUME_FROM_FIRST_OFFSET"
    LATEST = "CONSUME_FROM_LAST_OFFSET"
    """What comes from joining on; of a queue that the topic gets later, everything."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """What was stored at `start_ms` or later."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A consumer. An ASSIGNED one names `queues` and may leave `group` empty: then no offsets are read or committed."""

    group: str
    subscriptions: tuple[Subscription, ...]
    model: Model = Model.CLUSTERING
    start: StartOffset = StartOffset.EARLIEST
    start_ms: int = 0
    """Store time, ms since the epoch."""
    came_later: Callable[[Queue], bool] | None = None
    """Whether a queue came after the group had its start, beside those that are seen to come: it is read from its beginning."""
    orderly: bool = False
    """Hold the queue's lock at its broker while reading."""
    retries: bool = True
    """Also read what the group sent back; with CLUSTERING only."""
    strategy: Strategy = averagely
    queues: tuple[Queue, ...] = ()
    offsets: Mapping[Queue, int] = field(default_factory=dict)
    """Where ASSIGNED queues begin, whatever else is known about them."""
    store: BroadcastOffsets | None = None
    """Keeps the offsets with BROADCASTING; without one every queue begins at `start`, every time."""
    max_bytes: int = MAX_BYTES
    """Of answers that wait to be taken, all queues together."""
    max_msgs: int = MAX_MSGS

    def __post_init__(self) -> None:
        if self.model is Model.ASSIGNED:
            known = {subscription.topic for subscription in self.subscriptions}
            if not self.queues or {queue.topic for queue in self.queues} - known:
                raise LocalProtocolError("an assigned consumer names its queues and has a subscription for each of their topics")
        elif not self.group or not self.subscriptions:
            raise LocalProtocolError("a member of a group needs the group's name and a subscription")
        if self.orderly and self.model is not Model.CLUSTERING:
            raise LocalProtocolError(f"queues are locked for clustering groups only, not with {self.model.value}")
        if len({subscription.topic for subscription in self.subscriptions}) != len(self.subscriptions):
            raise LocalProtocolError(f"group {self.group} subscribes to a topic twice")

    @property
    def pull_group(self) -> str:
        """The group that pulls name."""
        return self.group or READER_GROUP
