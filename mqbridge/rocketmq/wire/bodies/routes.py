"""What NameServers tell: the route of a topic, the cluster, lists of topics, key-value tables.

A NameServer writes broker ids as bare numbers to clients below version 401, and always in the cluster info. The Go client takes
that text apart by hand, at commas and colons: no blanks may stand in it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.lenient import list_of, map_of, number_of, read, text_of, texts_of


class Perm:
    """Bits of a topic's or queue's permission."""

    INHERIT = 1
    """It is a template for topics that are created automatically."""
    WRITE = 2
    READ = 4
    READ_WRITE = 6
    PRIORITY = 8


class QueueData(NamedTuple):
    """The queues of a topic at one broker: ids count from 0."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int = Perm.READ_WRITE
    sys_flag: int = 0


class BrokerData(NamedTuple):
    """A broker; in `addresses` 0 is the master and the others are slaves."""

    name: str
    cluster: str
    addresses: Mapping[int, str]


class Route(NamedTuple):
    """Where a topic is. With `is_static` its queues are logical ones, which need a map that we do not read."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_conf: str = ""
    is_static: bool = False


def decode_route(body: bytes) -> Route:
    """Answer to GET_ROUTEINFO_BY_TOPIC, standard or not. Raises RemoteProtocolError."""
    return read("a route", body, _route)


def _route(said: dict[str, Any]) -> Route:
    queues = tuple(
        QueueData(
            text_of(one, "brokerName"),
            number_of(one, "readQueueNums"),
            number_of(one, "writeQueueNums"),
            number_of(one, "perm"),
            number_of(one, "topicSysFlag"),
        )
        for one in list_of(said, "queueDatas")
    )
    brokers = tuple(_broker(one) for one in list_of(said, "brokerDatas"))
    return Route(queues, brokers, text_of(said, "orderTopicConf"), bool(map_of(said, "topicQueueMappingByBroker")))


def _broker(said: dict[str, Any]) -> BrokerData:
    addresses = {int(number): address for number, address in texts_of(said, "brokerAddrs").items()}
    return BrokerData(text_of(said, "brokerName"), text_of(said, "cluster"), addresses)


def encode_route(route: Route, *, standard: bool = True) -> bytes:
    """The route for a client that reads standard JSON, or for one below version 401 that did not ask for it."""
    said: dict[str, Any] = {
        "brokerDatas": [_broker_body(broker) for broker in route.brokers],
        "filterServerTable": {},
    }
    if route.order_conf:
        said["orderTopicConf"] = route.order_conf
    said["queueDatas"] = [
        {
            "brokerName": queue.broker,
            "perm": queue.perm,
            "readQueueNums": queue.read_queues,
            "topicSysFlag": queue.sys_flag,
            "writeQueueNums": queue.write_queues,
        }
        for queue in route.queues
    ]
    return orjson.dumps(said) if standard else _bare(said)


def _broker_body(broker: BrokerData) -> dict[str, Any]:
    addresses = {str(number): address for number, address in sorted(broker.addresses.items())}
    return {"brokerAddrs": addresses, "brokerName": broker.name, "cluster": broker.cluster, "enableActingMaster": False}


def _bare(value: Any) -> bytes:
    """JSON with the quotes left away from keys that are numbers, and a body without any such key unchanged."""
    if isinstance(value, dict):
        return b"{" + b",".join(_bare_key(key) + b":" + _bare(member) for key, member in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_bare, value)) + b"]"
    return orjson.dumps(value)


def _bare_key(key: str) -> bytes:
    return key.encode() if key.isascii() and key.isdigit() else orjson.dumps(key)


class ClusterInfo(NamedTuple):
    """All brokers by name, and the names by cluster."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Answer to GET_BROKER_CLUSTER_INFO. Raises RemoteProtocolError."""
    return read(
        "the cluster info",
        body,
        lambda said: ClusterInfo(
            {name: _broker(broker) for name, broker in map_of(said, "brokerAddrTable").items()},
            {name: tuple(map(str, brokers)) for name, brokers in map_of(said, "clusterAddrTable").items()},
        ),
    )


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """As NameServers write it, broker ids bare."""
    # A cluster or broker whose name is a number must keep its quotes: only the ids of the addresses lose theirs.
    brokers = b",".join(orjson.dumps(name) + b":" + _bare(_broker_body(broker)) for name, broker in info.brokers.items())
    clusters = orjson.dumps({name: list(names) for name, names in info.clusters.items()})
    return b'{"brokerAddrTable":{' + brokers + b'},"clusterAddrTable":' + clusters + b"}"


def decode_topic_list(body: bytes) -> list[str]:
    """Answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER and GET_TOPICS_BY_CLUSTER. Raises RemoteProtocolError."""
    return read("a topic list", body, lambda said: [str(topic) for topic in list_of(said, "topicList")])


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """A list of topics."""
    return orjson.dumps({"topicList": list(topics)})


def decode_table(body: bytes) -> dict[str, str]:
    """KVTable: answers to GET_BROKER_RUNTIME_INFO and REGISTER_BROKER. Raises RemoteProtocolError."""
    return read("a key-value table", body, lambda said: texts_of(said, "table"))


def encode_table(table: Mapping[str, str]) -> bytes:
    """KVTable."""
    return orjson.dumps({"table": dict(table)})
