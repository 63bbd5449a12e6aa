"""The server for RocketMQ clients: makes the sessions of connections, and hands each request to what serves it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from mqbridge.listener.server import ServerCounts, Services
from mqbridge.net.listen import ClientSession
from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import Handler, ServedConnection
from mqbridge.rocketmq.server.group_requests import GroupRequests
from mqbridge.rocketmq.server.lookups import Lookups
from mqbridge.rocketmq.server.offsets import Offsets
from mqbridge.rocketmq.server.pulls import Pulls
from mqbridge.rocketmq.server.replies import Replies
from mqbridge.rocketmq.server.routes import Routes
from mqbridge.rocketmq.server.send_backs import SendBacks
from mqbridge.rocketmq.server.sends import SendRequests
from mqbridge.rocketmq.server.tools import Tools
from mqbridge.rocketmq.server.transactions import Transactions
from mqbridge.rocketmq.wire.codes import Code

DRAIN_CHECK_S = 0.02
"""Pause between two checks whether everything in flight is answered."""
MAX_DESCRIBED = 1000
"""Maximum number of producer groups, and of consumer groups, that are described."""
PATIENT = frozenset(
    {
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.END_TRANSACTION,
        Code.UPDATE_CONSUMER_OFFSET,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""Requests that may take longer than a client usually waits: they limit their time themselves."""


class RocketMQServer:
    """See `mqbridge.listener.server.ProtocolServer`."""

    web = None
    refusal = b""

    def __init__(self, services: Services) -> None:
        self.broker = Broker(services)
        self.sends = SendRequests(self.broker)
        self.pulls = Pulls(self.broker)
        self.lookups = Lookups(self.broker)
        self.transactions = Transactions(self.broker, self.sends)
        self.group_requests = GroupRequests(self.broker)
        self.broker.on_forgotten = self.sends.queues.forget
        self.broker.on_feed_changed = self._on_feed_changed
        self._connections: set[ServedConnection] = set()
        self._refused = 0
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[int, Handler]:
        groups, routes, offsets = self.group_requests, Routes(self.broker), Offsets(self.broker)
        send_backs, replies = SendBacks(self.broker, self.sends, self.lookups), Replies(self.broker)
        tools = Tools(self.broker, self.pulls, offsets)
        return {
            Code.SEND_MESSAGE: self.sends.serve,
            Code.SEND_MESSAGE_V2: self.sends.serve,
            Code.SEND_BATCH_MESSAGE: self.sends.serve,
            Code.SEND_REPLY_MESSAGE: replies.serve,
            Code.SEND_REPLY_MESSAGE_V2: replies.serve,
            Code.CONSUMER_SEND_MSG_BACK: send_backs.serve,
            Code.END_TRANSACTION: self.transactions.end,
            Code.PULL_MESSAGE: self.pulls.serve,
            Code.LITE_PULL_MESSAGE: self.pulls.serve,
            Code.QUERY_CONSUMER_OFFSET: offsets.query,
            Code.UPDATE_CONSUMER_OFFSET: offsets.update,
            Code.GET_MAX_OFFSET: offsets.maximum,
            Code.GET_MIN_OFFSET: offsets.minimum,
            Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
            Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_time,
            Code.HEART_BEAT: groups.heartbeat,
            Code.UNREGISTER_CLIENT: groups.unregister,
            Code.GET_CONSUMER_LIST_BY_GROUP: groups.members,
            Code.CHECK_CLIENT_CONFIG: groups.check_client,
            Code.LOCK_BATCH_MQ: groups.lock,
            Code.UNLOCK_BATCH_MQ: groups.unlock,
            Code.QUERY_ASSIGNMENT: groups.assignment,
            Code.SET_MESSAGE_REQUEST_MODE: groups.request_mode,
            Code.VIEW_MESSAGE_BY_ID: self.lookups.view,
            Code.QUERY_MESSAGE: self.lookups.query,
            Code.GET_ROUTEINFO_BY_TOPIC: routes.route,
            Code.GET_BROKER_CLUSTER_INFO: routes.cluster,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: routes.topics,
            Code.GET_TOPICS_BY_CLUSTER: routes.topics_of_cluster,
            Code.GET_KV_CONFIG: routes.setting,
            Code.GET_KVLIST_BY_NAMESPACE: routes.setting,
            Code.PUT_KV_CONFIG: routes.change_setting,
            Code.DELETE_KV_CONFIG: routes.delete_setting,
            Code.WIPE_WRITE_PERM_OF_BROKER: routes.change_setting,
            Code.ADD_WRITE_PERM_OF_BROKER: routes.change_setting,
            **tools.handlers(),
        }

    @property
    def counts(self) -> ServerCounts:
        """Present numbers and totals."""
        refused = self._refused + sum(connection.refused_requests for connection in self._connections)
        return self.broker.counts._replace(refused_requests=refused)

    def make_session(self) -> ClientSession:
        """Make the session of a new connection."""
        services = self.broker.services
        return ServedConnection(self._handlers, PATIENT, self._on_connection, services.in_flight, services.advertise)

    def _on_connection(self, connection: ServedConnection, is_open: bool) -> None:
        if is_open:
            self._connections.add(connection)
            return
        self._connections.discard(connection)
        self._refused += connection.refused_requests
        self.broker.drop(connection)
        self.pulls.drop(connection)
        self.sends.drop(connection)

    def _on_feed_changed(self, group: str, backing: str, partition: str, is_held: bool) -> None:
        self.pulls.on_feed_changed(group, backing, partition, is_held)
        if is_held:
            self.group_requests.on_queue_held(group)

    async def start(self) -> None:
        """Begin to look for what is not used any more."""
        self.broker.clients.start()
        self.group_requests.start()
        self.pulls.start()
        self.sends.queues.start()
        self.transactions.start()

    async def drain(self, deadline: float) -> None:
        """Answer what is in flight, wait for commits, and close the connections."""
        self.broker.is_draining = True
        await asyncio.gather(self._wait_answered(deadline), self.broker.finish(deadline))
        await self.transactions.close(deadline)
        await asyncio.gather(*(connection.close() for connection in list(self._connections)))

    async def _wait_answered(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while self.sends.is_any_pending and loop.time() < deadline:  # noqa: ASYNC110 - of many
            await asyncio.sleep(DRAIN_CHECK_S)

    async def close(self, deadline: float) -> None:
        """End what is left."""
        self.broker.clients.stop()
        self.group_requests.stop()
        self.pulls.stop()
        self.sends.queues.stop()
        await self.transactions.close(deadline)
        await self.broker.close()

    def describe(self) -> Mapping[str, Any]:
        """Return the producer groups and the consumer groups."""
        clients = self.broker.clients
        producers = [{"name": name, "clients": sorted(members)} for name, members in clients.producers.items()]
        consumers = [
            {
                "name": group.name,
                "topics": sorted(group.subscriptions),
                "consumers": [
                    {"name": member.client_id, "address": member.link.peer, "language": member.link.language}
                    for member in group.members.values()
                ],
                "problem": self.broker.membership_problem(group.name),
            }
            for group in clients.consumers.values()
        ]
        return {"producers": producers[:MAX_DESCRIBED], "subscriptions": consumers[:MAX_DESCRIBED]}
