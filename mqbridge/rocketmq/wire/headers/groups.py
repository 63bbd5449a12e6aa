"""Headers of requests about clients and consumer groups; a broker also sends some of these requests to clients."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header, named


@dataclass(slots=True)
class UnregisterHeader(Header):
    """UNREGISTER_CLIENT: a client leaves its producer group, its consumer group or both."""

    client_id: str = named("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True)
class GroupHeader(Header):
    """A consumer group, for GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST and NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


@dataclass(slots=True)
class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST: list the clients of this producer group."""

    producer_group: str


@dataclass(slots=True)
class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK: deliver the message at this physical offset again.

    With `delay_level` 0, the broker chooses the delay; below 0, the message becomes a dead letter, as it also does after
    `max_reconsume_times` redeliveries (None: the limit of the group). `bname` is the broker's name, for proxies. mqbridge does
    not use `unit_mode`.
    """

    offset: int
    group: str
    delay_level: int = 0
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    bname: str | None = None


@dataclass(slots=True)
class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO, which the broker forwards to the client. `jstack_enable` requests the stacks of its threads."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(slots=True)
class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY, which the broker forwards to the client with one stored message as the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


@dataclass(slots=True)
class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET to a broker, and RESET_CONSUMER_CLIENT_OFFSET from the broker to the clients of the group.

    `timestamp` is the store time (ms) to continue from; -1 means the end of the queue. `queue_id` -1 means all queues of the
    topic. `offset` replaces `timestamp` if `queue_id` names one queue. Without `is_force`, offsets only move backward.
    """

    group: str
    topic: str
    timestamp: int
    is_force: bool = True
    queue_id: int = -1
    offset: int | None = None


@dataclass(slots=True)
class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP. With `clean_offset` True, the broker also deletes the committed offsets of the group.

    Brokers before 5.0 read `remove_offset` instead.
    """

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


@dataclass(slots=True)
class GroupConfigHeader(Header):
    """A consumer group, for GET_SUBSCRIPTIONGROUP_CONFIG and QUERY_TOPICS_BY_CONSUMER."""

    group: str


@dataclass(slots=True)
class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS. Without a topic, the response is about all topics of the group."""

    consumer_group: str
    topic: str | None = None
