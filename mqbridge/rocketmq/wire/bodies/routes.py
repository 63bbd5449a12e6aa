"""What NameServers tell: the route of a topic, the cluster, lists of topics, key-value tables.

A NameServer writes broker ids as bare numbers to clients below version 401, and always in the cluster info. The Go client takes
that text apart by hand, at commas and colons: no blanks may stand in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, member
from mqbridge.rocketmq.wire.lenient import members_of


class Perm:
    """Bits of a topic's or queue's permission."""

    INHERIT = 1
    """It is a template for topics that are created automatically."""
    WRITE = 2
    READ = 4
    READ_WRITE = 6
    PRIORITY = 8


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """The queues of a topic at one broker: ids count from 0."""

    broker: str = member("brokerName")
    read_queues: int = member("readQueueNums")
    write_queues: int = member("writeQueueNums")
    perm: int = member("perm", Perm.READ_WRITE, absent=0)
    sys_flag: int = member("topicSysFlag", 0)


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """A broker; in `addresses` 0 is the master and the others are slaves."""

    name: str = member("brokerName")
    cluster: str = member("cluster")
    addresses: Mapping[int, str] = member("brokerAddrs")

    def _also_written(self) -> dict[str, Any]:
        return {"enableActingMaster": False}


_STATIC = Codec(lambda _: None, lambda value: bool(members_of(value)), {})
"""Only read: whether there is a map of logical queues."""


@dataclass(frozen=True, slots=True)
class Route(Body):
    """Answer to GET_ROUTEINFO_BY_TOPIC, standard or not.

    With `is_static` its queues are logical ones, which need a map that we do not read.
    """

    queues: tuple[QueueData, ...] = member("queueDatas")
    brokers: tuple[BrokerData, ...] = member("brokerDatas")
    order_conf: str = member("orderTopicConf", "", sparse=True)
    is_static: bool = member("topicQueueMappingByBroker", False, codec=_STATIC)

    def _also_written(self) -> dict[str, Any]:
        return {"filterServerTable": {}}

    def encode(self, *, standard: bool = True) -> bytes:
        """The route for a client that reads standard JSON, or for one below version 401 that did not ask for it."""
        return orjson.dumps(self.to_json()) if standard else _bare(self.to_json())


def _bare(value: Any) -> bytes:
    """JSON with the quotes left away from keys that are numbers, and a body without any such key unchanged."""
    if isinstance(value, dict):
        return b"{" + b",".join(_bare_key(key) + b":" + _bare(one) for key, one in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_bare, value)) + b"]"
    return orjson.dumps(value)


def _bare_key(key: str) -> bytes:
    return key.encode() if key.isascii() and key.isdigit() else orjson.dumps(key)


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """Answer to GET_BROKER_CLUSTER_INFO: all brokers by name, and the names by cluster."""

    brokers: Mapping[str, BrokerData] = member("brokerAddrTable")
    clusters: Mapping[str, tuple[str, ...]] = member("clusterAddrTable")

    def encode(self) -> bytes:
        """As NameServers write it, broker ids bare."""
        # A cluster or broker whose name is a number must keep its quotes: only the ids of the addresses lose theirs.
        brokers = b",".join(orjson.dumps(name) + b":" + _bare(broker.to_json()) for name, broker in self.brokers.items())
        clusters = orjson.dumps({name: list(names) for name, names in self.clusters.items()})
        return b'{"brokerAddrTable":{' + brokers + b'},"clusterAddrTable":' + clusters + b"}"


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_TOPICS_BY_CLUSTER and QUERY_TOPICS_BY_CONSUMER."""

    topics: tuple[str, ...] = member("topicList")


@dataclass(frozen=True, slots=True)
class Table(Body):
    """KVTable: answers to GET_BROKER_RUNTIME_INFO and REGISTER_BROKER."""

    table: Mapping[str, str]
