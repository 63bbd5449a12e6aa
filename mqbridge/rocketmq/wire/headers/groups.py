"""Headers about clients and groups, of requests by clients and by brokers."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header, named


@dataclass(slots=True)
class UnregisterHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = named("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True)
class GroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST and NOTIFY_CONSUMER_IDS_CHANGED: a consumer group."""

    consumer_group: str


@dataclass(slots=True)
class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


@dataclass(slots=True)
class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK: deliver the message at this physical offset again.

    Level 0: the broker chooses the delay; below 0: the message becomes a dead letter.
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
    """GET_CONSUMER_RUNNING_INFO, which the broker forwards to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(slots=True)
class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY, which the broker forwards to the client with one record as the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


@dataclass(slots=True)
class ResetOffsetHeader(Header):
    """RESET_CONSUMER_CLIENT_OFFSET and INVOKE_BROKER_TO_RESET_OFFSET. `timestamp` in ms, -1 for the end."""

    group: str
    topic: str
    timestamp: int
    is_force: bool = True
    queue_id: int = -1
    offset: int | None = None


@dataclass(slots=True)
class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool | None = None


@dataclass(slots=True)
class GroupConfigHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG and QUERY_TOPICS_BY_CONSUMER."""

    group: str


@dataclass(slots=True)
class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS."""

    consumer_group: str
    topic: str | None = None
