"""Administration of topics and brokers. Groups are in `group_admin`, offsets in `positions`, single messages in `query`.

A topic exists at brokers, each with its own queues; name servers only return what brokers register. So a change is sent to every
master, and is complete once the route contains it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused
from mqbridge.rocketmq.client.admin.name_rules import check_topic
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import MASTER, TopicRoute
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig, TopicConfigs
from mqbridge.rocketmq.wire.bodies.offsets import QueueStats, TopicStats
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import ClusterInfo, Perm, TopicList
from mqbridge.rocketmq.wire.broker_settings import decode_settings, encode_settings
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.admin import ClusterHeader, CreateTopicHeader, TopicHeader
from mqbridge.wire.limits import check_topics

ROUTE_TIMEOUT_S = 30.0
"""How long to wait until a change is in the route. A broker registers a new topic with the name servers at once, and all topics
every 30 s: by then a name server that missed the first registration has the topic."""
ROUTE_POLL_S = 0.05
"""Pause between two queries of the route while we wait for a change."""
SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_")
"""Prefixes of system topics, and of a group's retry and dead letter topics."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""Suffix of each cluster's topic for replies to requests."""
SYSTEM_TOPICS = frozenset(
    {"TBW102", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC"}
)
"""System topics whose names have none of SYSTEM_PREFIXES."""

T = TypeVar("T")


class Admin:
    """Administration of one cluster. Each call raises ClusterError, and RemoteProtocolError for an invalid response."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    # --- brokers ----------------------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Return every registered broker with its addresses, and the clusters."""
        info = await self._client.name_servers.request(
            Code.GET_BROKER_CLUSTER_INFO, {}, lambda response: ClusterInfo.decode(response.body)
        )
        assert info is not None  # noqa: S101 - this request has no response for a missing object
        return info

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return the master's address by broker name, sorted by name, for the brokers of `cluster`, or of all clusters with None.

        Raises ClusterError: FATAL for an unknown cluster, RETRY while no master is registered.
        """
        info = await self.cluster()
        names = sorted(info.brokers) if cluster is None else sorted(info.clusters.get(cluster, ()))
        addresses_by_name = {name: info.brokers[name].addresses for name in names if name in info.brokers}
        masters = {name: addresses[MASTER] for name, addresses in addresses_by_name.items() if MASTER in addresses}
        if cluster is not None and cluster not in info.clusters:
            raise ClusterError(f"there is no cluster {cluster!r}; there are: {', '.join(sorted(info.clusters))}", Failure.FATAL)
        if not masters:
            of_cluster = "" if cluster is None else f" of cluster {cluster!r}"
            servers = ", ".join(self._client.name_servers.addresses)
            raise ClusterError(
                f"no master{of_cluster} is registered with the name servers ({servers}): check that the brokers run and can "
                "reach the name servers",
                Failure.RETRY,
            )
        return masters

    async def route(self, topic: str, *, fresh: bool = False) -> TopicRoute | None:
        """Return the route of a topic, None if it does not exist; `fresh`: query the name servers even if a route is cached.

        Name servers drop the topics of a broker that stops. So if the route is missing, this raises ClusterError (RETRY) while no
        master is registered. Otherwise it queries the route once more, because brokers register together with their topics.
        """
        route = await self._client.routes.get(topic, fresh=fresh)
        if route is None:
            await self.masters()
            route = await self._client.routes.get(topic, fresh=True)
        return route

    async def at_masters(self, call: Callable[[str], Awaitable[T]], cluster: str | None = None) -> dict[str, T]:
        """Call `call` with the address of every master of `cluster`, or of all clusters with None.

        Returns the results by broker name. Raises the first error of a call.
        """
        masters = await self.masters(cluster)
        return dict(zip(masters, await asyncio.gather(*map(call, masters.values())), strict=True))

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's settings."""
        return decode_settings((await self._client.request(address, Code.GET_BROKER_CONFIG)).body)

    async def update_broker_config(self, address: str, settings: Mapping[str, object]) -> None:
        """Change settings at runtime. Most of them take effect without a restart. The broker ignores unknown names."""
        await self._client.request(address, Code.UPDATE_BROKER_CONFIG, body=encode_settings(settings))

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self, cluster: str | None = None) -> list[str]:
        """Return every topic of `cluster`, or of all clusters with None; system topics included, see `is_system`."""
        code, ext = Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, dict[str, str]()
        if cluster is not None:
            code, ext = Code.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster).encode()
        topics = await self._client.name_servers.request(code, ext, lambda response: list(TopicList.decode(response.body).topics))
        check_topics(len(topics or ()), "topics")
        return sorted(topics or ())

    async def user_topics(self) -> list[str]:
        """Return every topic except those of `is_system`, and those that brokers name after each cluster and each broker."""
        topics, info = await asyncio.gather(self.topics(), self.cluster())
        named_after_servers = {*info.clusters, *info.brokers, *(f"{cluster}{REPLY_SUFFIX}" for cluster in info.clusters)}
        return [topic for topic in topics if not is_system(topic) and topic not in named_after_servers]

    async def create_topic(
        self,
        topic: str,
        queues: int,
        *,
        read_queues: int | None = None,
        perm: int = Perm.READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        timeout: float = ROUTE_TIMEOUT_S,
    ) -> None:
        """Create or change a topic with this number of queues at every master, and wait until the change is in the route.

        An existing topic gets exactly these settings, even if a broker had more queues; `TopicGrowth` only adds queues.

        `queues` is the number of writable queues, `read_queues` of readable ones (default: `queues`); to shrink a topic without
        loss, keep the old `read_queues` until the queues that are no longer written are consumed. `perm` is made of bits of Perm.
        `order` marks a topic whose queue list is fixed at the name servers; this call does not fix the list. `attributes` (5.x)
        are like {"message.type": "FIFO"}; an existing topic keeps those that are not given. `cluster` is the cluster of the
        masters; None: every cluster.
        Raises RequestTimeout if the change is not in the route after `timeout` seconds.
        """
        header = CreateTopicHeader(
            check_topic(topic),
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=perm,
            order=order,
            attributes=",".join(f"+{name}={value}" for name, value in (attributes or {}).items()) or None,
        )
        ext = header.encode()
        create = Code.UPDATE_AND_CREATE_TOPIC
        responses = await self.at_masters(lambda address: self._client.request(address, create, ext), cluster)
        # A TopicRoute contains only the queues that the permissions let clients use.
        readable, writable = header.read_queue_nums if perm & Perm.READ else 0, queues if perm & Perm.WRITE else 0
        expected = dict.fromkeys(responses, (readable, writable))
        await self.wait_for_queues(topic, expected, timeout)

    async def wait_for_queues(
        self, topic: str, expected: Mapping[str, tuple[int, int]], timeout: float = ROUTE_TIMEOUT_S
    ) -> None:
        """Wait until the topic's route has these numbers of readable and writable queues, by broker name.

        Raises RequestTimeout after `timeout` seconds.
        """
        await self._wait_for(topic, lambda: self._has_queues(topic, expected), timeout)

    async def delete_topic(self, topic: str, *, timeout: float = ROUTE_TIMEOUT_S) -> None:
        """Delete a topic and its messages at every master, and wait until no name server returns its route.

        A missing topic is no error. Raises RequestTimeout if a name server still returns the route after `timeout` seconds.
        """
        ext = TopicHeader(topic).encode()
        await self.at_masters(lambda address: self._client.request(address, Code.DELETE_TOPIC_IN_BROKER, ext))
        await self._client.name_servers.request_all(Code.DELETE_TOPIC_IN_NAMESRV, ext)
        await self._wait_for(topic, lambda: self._is_deleted(topic), timeout)

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's configuration at each master that has the topic, by broker name."""
        configs = await self.at_masters(lambda address: self.topic_config_at(address, topic))
        return {name: config for name, config in configs.items() if config is not None}

    async def topic_config_at(self, address: str, topic: str) -> TopicConfig | None:
        """Return a topic's configuration at one broker; None if the broker does not have the topic."""
        accept = frozenset({Status.SUCCESS, Status.TOPIC_NOT_EXIST})
        try:
            response = await self._client.request(address, Code.GET_TOPIC_CONFIG, TopicHeader(topic).encode(), accept=accept)
        except ServerRefused as error:
            if error.code != Status.REQUEST_CODE_NOT_SUPPORTED:
                raise
        else:
            return TopicConfig.decode(response.body) if response.code == Status.SUCCESS else None
        configs = await self._client.request(address, Code.GET_ALL_TOPIC_CONFIG)  # brokers before 5.0 have only this request
        return TopicConfigs.decode(configs.body).topics.get(topic)

    async def update_topic_at(self, address: str, config: TopicConfig) -> None:
        """Create a topic at one broker, or replace its settings there; an existing topic keeps its attributes."""
        header = CreateTopicHeader(
            check_topic(config.name),
            read_queue_nums=config.read_queues,
            write_queue_nums=config.write_queues,
            perm=config.perm,
            topic_filter_type=config.filter_type,
            topic_sys_flag=config.sys_flag,
            order=config.order,
        )
        await self._client.request(address, Code.UPDATE_AND_CREATE_TOPIC, header.encode())

    async def topic_stats(self, topic: str) -> dict[Queue, QueueStats]:
        """Return the first offset of every queue, the offset after its last message, and its last write time (epoch, ms).

        Raises ClusterError (FATAL) if the topic does not exist.
        """
        ext = TopicHeader(topic).encode()
        responses = await self.request_masters_of(topic, Code.GET_TOPIC_STATS_INFO, ext)
        return {queue: stats for response in responses for queue, stats in TopicStats.decode(response.body).queues.items()}

    async def request_masters_of(self, topic: str, code: int, ext: Mapping[str, str]) -> list[Command]:
        """Send a request to every master of the topic; return the responses. Raises ClusterError (FATAL) for a missing topic."""
        route = await self._client.routes.get(topic, fresh=True)
        if route is None:
            raise ServerRefused(f"no name server knows topic {topic!r}", Status.TOPIC_NOT_EXIST, Failure.FATAL)
        return await asyncio.gather(*(self._client.request(address, code, ext) for address in route.masters()))

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def _wait_for(self, topic: str, condition: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """Wait until the topic's route fulfils the condition. Raises RequestTimeout after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not await condition():  # noqa: ASYNC110 - other processes decide
                    await asyncio.sleep(ROUTE_POLL_S)
        except TimeoutError as error:
            problem = f"topic {topic} was changed at its brokers, but the name servers do not show the change after {timeout:g} s"
            raise RequestTimeout(f"{problem}: do the brokers reach the name servers?") from error

    async def _has_queues(self, topic: str, expected: Mapping[str, tuple[int, int]]) -> bool:
        """Return True if the route has the expected numbers of readable and writable queues of every broker."""
        route = await self._client.routes.get(topic, fresh=True)
        if route is None:
            return False
        readable, writable = [queue.broker for queue in route.read_queues()], [queue.broker for queue in route.write_queues()]
        return all((readable.count(name), writable.count(name)) == numbers for name, numbers in expected.items())

    async def _is_deleted(self, topic: str) -> bool:
        """Return True if no name server returns the route; a fresh `get` tries all of them."""
        return await self._client.routes.get(topic, fresh=True) is None


def is_system(topic: str) -> bool:
    """Return True for the name of a system topic, or of a group's retry or dead letter topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)
