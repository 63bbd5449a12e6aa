"""Response bodies, most of them of NameServers: routes of topics, brokers of the cluster, lists of topics, key-value tables.

A NameServer writes the broker ids, which are keys, as unquoted numbers in routes for clients that announce a version below 401,
and always in the cluster info. The Go client splits the cluster info at commas and colons, so it must not contain blanks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, member
from mqbridge.rocketmq.wire.fastjson import as_members


class Perm:
    """Bits of a topic's or queue's permission."""

    INHERIT = 1
    """The topic is a template for topics that are created automatically."""
    WRITE = 2
    READ = 4
    READ_WRITE = 6
    PRIORITY = 8
    """Defined by RocketMQ; mqbridge does not use it."""


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """The queues of a topic at one broker. Their ids count from 0; `perm` consists of bits of Perm; read as 0 if absent.

    mqbridge does not interpret the bits of `sys_flag`.
    """

    broker: str = member("brokerName")
    read_queues: int = member("readQueueNums")
    write_queues: int = member("writeQueueNums")
    perm: int = member("perm", Perm.READ_WRITE, absent=0)
    sys_flag: int = member("topicSysFlag", 0)


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """A broker, with its addresses by broker id: 0 is the master, the others are slaves."""

    name: str = member("brokerName")
    cluster: str = member("cluster")
    addresses: Mapping[int, str] = member("brokerAddrs")

    def _write_only_members(self) -> dict[str, Any]:  # members that peers expect, but that mqbridge does not read
        return {"enableActingMaster": False}


_IS_STATIC = Codec(lambda _: None, lambda value: bool(as_members(value)), {})
"""Never written; reads True if the member contains a map of logical queues."""


@dataclass(frozen=True, slots=True)
class RouteData(Body):
    """Response to GET_ROUTEINFO_BY_TOPIC: the brokers of a topic, and its queues at each.

    `order_conf` is an ordered topic's fixed number of queues per broker (`broker:count;...`). A topic that `is_static` has
    logical queues; mqbridge does not read their map to the queues of brokers.
    """

    queues: tuple[QueueData, ...] = member("queueDatas")
    brokers: tuple[BrokerData, ...] = member("brokerDatas")
    order_conf: str = member("orderTopicConf", "", sparse=True)
    is_static: bool = member("topicQueueMappingByBroker", False, codec=_IS_STATIC)

    def _write_only_members(self) -> dict[str, Any]:
        return {"filterServerTable": {}}

    def encode(self, *, standard: bool = True) -> bytes:
        """Encode as standard JSON, or with unquoted numbers as keys for a client that needs them."""
        return orjson.dumps(self.to_json()) if standard else _unquoted_numbers(self.to_json())


def _unquoted_numbers(value: Any) -> bytes:
    """Encode a JSON value, without quotes around keys that are numbers."""
    if isinstance(value, dict):
        return b"{" + b",".join(_unquoted_key(key) + b":" + _unquoted_numbers(member) for key, member in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_unquoted_numbers, value)) + b"]"
    return orjson.dumps(value)


def _unquoted_key(key: str) -> bytes:
    return key.encode() if key.isascii() and key.isdigit() else orjson.dumps(key)


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """Response to GET_BROKER_CLUSTER_INFO: all brokers by name, and the names by cluster."""

    brokers: Mapping[str, BrokerData] = member("brokerAddrTable")
    clusters: Mapping[str, tuple[str, ...]] = member("clusterAddrTable")

    def encode(self) -> bytes:
        """Encode like a NameServer, with unquoted broker ids."""
        # Only broker ids are unquoted: a cluster or broker whose name is a number keeps its quotes.
        brokers = b",".join(
            orjson.dumps(name) + b":" + _unquoted_numbers(broker.to_json()) for name, broker in self.brokers.items()
        )
        clusters = orjson.dumps({name: list(names) for name, names in self.clusters.items()})
        return b'{"brokerAddrTable":{' + brokers + b'},"clusterAddrTable":' + clusters + b"}"


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Response to GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_TOPICS_BY_CLUSTER and QUERY_TOPICS_BY_CONSUMER."""

    topics: tuple[str, ...] = member("topicList")


@dataclass(frozen=True, slots=True)
class KvTable(Body):
    """Key-value pairs: response to GET_BROKER_RUNTIME_INFO and REGISTER_BROKER."""

    table: Mapping[str, str]
