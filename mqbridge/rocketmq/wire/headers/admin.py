"""Headers of requests to NameServers and of administrative requests."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.send import DEFAULT_TOPIC


@dataclass(slots=True)
class RouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC. With `accept_standard_json_only`, keys that are numbers are quoted in the response."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True)
class TopicHeader(Header):
    """A topic.

    For GET_TOPIC_STATS_INFO, GET_TOPIC_CONFIG, DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAMESRV and QUERY_TOPIC_CONSUME_BY_WHO.
    """

    topic: str


@dataclass(slots=True)
class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER: list the topics of the cluster with this name."""

    cluster: str


@dataclass(slots=True)
class BrokerHeader(Header):
    """REGISTER_BROKER, UNREGISTER_BROKER, BROKER_HEARTBEAT and QUERY_DATA_VERSION. Broker id 0 is a master.

    `ha_server_addr` is the address from which slaves copy; `compressed` and `body_crc32` describe the body of REGISTER_BROKER.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int = 0
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: int | None = None
    compressed: bool | None = None
    body_crc32: int | None = None


@dataclass(slots=True)
class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC.

    `perm` is the sum of 4 (read), 2 (write) and 1 (the topic is a template for automatically created topics). `default_topic` is
    required, but has no effect. `attributes` is like `+message.type=FIFO,+cleanup.policy=DELETE`, with `-` in front of an
    attribute to remove. Brokers read `force` only in requests for static topics (5.x).
    """

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: str | None = None
    default_topic: str = DEFAULT_TOPIC
    force: bool | None = None
