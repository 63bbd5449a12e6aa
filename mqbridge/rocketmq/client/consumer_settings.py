"""Settings of a consumer: group, subscriptions, message model, start, limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.allocation_strategies import Strategy, averagely
from mqbridge.rocketmq.client.broadcast_offsets import BroadcastOffsets
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue

MAX_BYTES = 64 << 20
MAX_MSGS = 4096
"""Messages requested in one pull. Brokers return 32 by default, see `pull_request`."""
READER_GROUP = "TOOLS_CONSUMER"
"""The group of readers without a group; every broker has it from the start, so readers leave no trace."""


class MessageModel(Enum):
    """How queues are divided among consumers."""

    CLUSTERING = "CLUSTERING"
    """The members of the group divide the queues; brokers keep the offsets."""
    BROADCASTING = "BROADCASTING"
    """Every member reads all queues; the caller keeps the offsets."""
    ASSIGNED = "ASSIGNED"
    """The caller names the queues; the consumer joins no group."""


class StartOffset(Enum):
    """The start of a queue without a committed offset, in the words of heartbeats."""

    EARLIEST = "CONSUME_FROM_FIRST_OFFSET"
    LATEST = "CONSUME_FROM_LAST_OFFSET"
    """Messages stored after joining; all messages of a queue that is added to the topic later."""
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
    """Store time, ms since the epoch."""
    came_later: Callable[[Queue], bool] | None = None
    """True for a queue that was added after the group's start, besides those seen to be added: it is read from its beginning."""
    orderly: bool = False
    """Hold the queue's lock at its broker while reading it."""
    retries: bool = True
    """Also consume the group's retry topic; with CLUSTERING only."""
    strategy: Strategy = averagely
    queues: tuple[Queue, ...] = ()
    offsets: Mapping[Queue, int] = field(default_factory=dict)
    """Start offsets of ASSIGNED queues, which override all others."""
    store: BroadcastOffsets | None = None
    """Keeps the offsets with BROADCASTING; without it every run starts each queue at `start`."""
    max_bytes: int = MAX_BYTES
    """Limit of pulled bytes that wait to be taken, all queues together."""
    max_msgs: int = MAX_MSGS

    def __post_init__(self) -> None:
        if self.model is MessageModel.ASSIGNED:
            known = {subscription.topic for subscription in self.subscriptions}
            if not self.queues or {queue.topic for queue in self.queues} - known:
                raise LocalProtocolError("an assigned consumer names its queues and has a subscription for each of their topics")
        elif not self.group or not self.subscriptions:
            raise LocalProtocolError("a member of a group needs the group's name and a subscription")
        if self.orderly and self.model is not MessageModel.CLUSTERING:
            raise LocalProtocolError(f"queues are locked for clustering groups only, not with {self.model.value}")
        if len({subscription.topic for subscription in self.subscriptions}) != len(self.subscriptions):
            raise LocalProtocolError(f"group {self.group} subscribes to a topic twice")

    @property
    def pull_group(self) -> str:
        """The group in pull requests."""
        return self.group or READER_GROUP
