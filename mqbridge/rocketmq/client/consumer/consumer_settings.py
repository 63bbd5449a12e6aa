"""Settings of a consumer: group, subscriptions, message model, start, limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.consumer.broadcast_offsets import BroadcastOffsets
from mqbridge.rocketmq.client.consumer.subscription import Subscription
from mqbridge.rocketmq.wire.allocation_strategies import Strategy, averagely
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.headers.pull import READER_GROUP

MAX_BYTES = 64 << 20
"""Default limit of the bytes that all queues of a consumer buffer together."""
MAX_MSGS = 4096
"""Default number of messages requested per pull. Brokers return at most 32 by default, see `pull_request`."""


class MessageModel(Enum):
    """How queues are divided among consumers, and who keeps the offsets."""

    CLUSTERING = "CLUSTERING"
    """The members of the group divide the queues; brokers keep the offsets."""
    BROADCASTING = "BROADCASTING"
    """Every member reads all queues; the caller keeps the offsets."""
    ASSIGNED = "ASSIGNED"
    """The caller names the queues; the consumer joins no group, but keeps its offsets at the brokers if it names one."""


class StartOffset(Enum):
    """The start of a queue without a committed offset. Values are those of heartbeats."""

    EARLIEST = "CONSUME_FROM_FIRST_OFFSET"
    """All messages that the queue still has."""
    LATEST = "CONSUME_FROM_LAST_OFFSET"
    """Messages stored after the consumer joined, also those of queues that are added to the topic after that."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """Messages stored at `start_ms` or later."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of one consumer. ASSIGNED needs `queues`; with an empty `group`, no offsets are loaded or committed."""

    group: str
    subscriptions: tuple[Subscription, ...]
    model: MessageModel = MessageModel.CLUSTERING
    start: StartOffset = StartOffset.EARLIEST
    start_ms: int = 0
    """Start of TIMESTAMP: a store time, ms since the epoch."""
    came_later: Callable[[Queue], bool] | None = None
    """Function that returns True for a queue that was added to the topic after the group started; it is read from its beginning.

    Queues that this consumer sees being added are always read from their beginning; with None, only these. With LATEST, a queue
    of a broker that was not there when the group started is read from what was stored since then: the broker may have been down.
    """
    began_ms: int | None = None
    """When the group started, ms since the epoch; None: when this consumer joined."""
    orderly: bool = False
    """True: hold the lock of each assigned queue at its broker, so that no other member reads it at the same time.

    False: during a rebalance two members may read a queue for a moment.
    """
    abandoned: tuple[str, ...] = ()
    """Client ids of members that were killed: locks of theirs are released before this consumer asks for its own, unless a broker
    says that they live. With `orderly` only."""
    release_wait_s: float = 0.0
    """How long a queue that now belongs to another member is kept, so that messages in flight can be acknowledged; see
    `AssignedQueue.announce_release`. Another member waits for it only if both are `orderly`."""
    retries: bool = True
    """Also consume the group's retry topic; with CLUSTERING only."""
    strategy: Strategy = averagely
    """Divides the queues among the members; with CLUSTERING only."""
    queues: tuple[Queue, ...] = ()
    """The queues to read with ASSIGNED."""
    offsets: Mapping[Queue, int] = field(default_factory=dict)
    """Start offsets of ASSIGNED queues; they override committed offsets and `start`, which apply to other queues."""
    store: BroadcastOffsets | None = None
    """Store of the offsets with BROADCASTING; without one, every restart begins each queue at `start`."""
    max_bytes: int = MAX_BYTES
    """Limit of buffered bytes of all queues together; at the limit, pulls wait."""
    max_msgs: int = MAX_MSGS
    """Number of messages requested per pull."""

    def __post_init__(self) -> None:
        if self.model is MessageModel.ASSIGNED:
            subscribed_topics = {subscription.topic for subscription in self.subscriptions}
            if not self.queues or {queue.topic for queue in self.queues} - subscribed_topics:
                raise LocalProtocolError(
                    "a consumer of assigned queues needs `queues`, and a subscription to each of their topics: it has the queues "
                    f"{list(map(str, self.queues))} and subscriptions to {sorted(subscribed_topics)}"
                )
        elif not self.group or not self.subscriptions:
            raise LocalProtocolError(
                f"a consumer with the message model {self.model.value} needs a group name and at least one subscription"
            )
        if self.orderly and self.model is not MessageModel.CLUSTERING:
            raise LocalProtocolError(f"`orderly` requires the message model CLUSTERING, not {self.model.value}")
        if len({subscription.topic for subscription in self.subscriptions}) != len(self.subscriptions):
            raise LocalProtocolError(
                f"group {self.group} has several subscriptions to one topic: combine their filters into one subscription"
            )

    @property
    def pull_group(self) -> str:
        """The group to name in pull requests: `group`, or READER_GROUP without one."""
        return self.group or READER_GROUP
