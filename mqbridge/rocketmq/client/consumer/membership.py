"""Group membership: joining a group by heartbeats, announcing subscriptions, and querying the group's members."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ProtocolError, ServerRefused
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.consumer.subscription import Subscription, everything, retry_topic
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, ConsumerData, ConsumerList, SubscriptionData
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.tags import SQL92

log = logging.getLogger(__name__)

JOIN_TRIES = 10
"""How many heartbeats we send at most until a broker lists us. One is enough unless a broker is overloaded or the heartbeat is
lost."""
JOIN_PAUSE_S = 0.5
"""Pause between these heartbeats."""


class Membership:
    """One member of one group.

    `topics` are the topics that it reads: those of its subscriptions and, with the model CLUSTERING and `retries`, the group's
    retry topic.
    """

    def __init__(self, brokers: Brokers, settings: ConsumerSettings) -> None:
        self.version = time.time_ns() // 1_000_000
        """Version of our subscriptions (subVersion), the time of joining or of `announce_newer`, in ms since the epoch.

        A broker keeps the group's subscriptions with the highest version that it got, and refuses pulls with a higher one.
        """
        self._brokers, self._settings = brokers, settings
        self._subscriptions = {subscription.topic: subscription for subscription in settings.subscriptions}
        if settings.model is MessageModel.CLUSTERING and settings.retries:
            retries = everything(retry_topic(settings.group))
            self._subscriptions.setdefault(retries.topic, retries)
        self.topics = list(self._subscriptions)

    def subscription(self, topic: str) -> Subscription:
        """Return our subscription to a topic."""
        return self._subscriptions[topic]

    def subscription_data(self) -> list[SubscriptionData]:
        """Return all subscriptions in their wire form, as heartbeats contain them."""
        return [subscription.data(self.version) for subscription in self._subscriptions.values()]

    async def join(self) -> None:
        """Let the brokers check our SQL92 expressions, then send heartbeats until the brokers list us as a member.

        Raises ClusterError: FATAL for an expression that a broker cannot use, or a group that brokers ignore because it does not
        exist.
        """
        for subscription in self._settings.subscriptions:
            if subscription.expression_type == SQL92:
                await self._check_expression(subscription)
        client = self._brokers.client
        self._announce(self.version)
        topic = self._settings.subscriptions[0].topic
        for _ in range(JOIN_TRIES):
            await client.heartbeat()
            problem = await self._join_problem(topic)
            if not problem:
                return
            await asyncio.sleep(JOIN_PAUSE_S)
        if isinstance(problem, MqbridgeError):
            raise ClusterError(f"group {self._settings.group} could not be joined: {problem}") from problem
        raise ClusterError(
            f"the brokers of {topic} do not list {client.client_id} as a member of group {self._settings.group}, though it sent "
            f"{JOIN_TRIES} heartbeats. Brokers with autoCreateSubscriptionGroup=false ignore groups that do not exist: create it",
            Failure.FATAL,
        )

    async def announce_newer(self, than: int) -> None:
        """Announce our subscriptions again, with a version higher than `than`, so that brokers use them instead of older ones.

        Pulls contain the new version only after the heartbeat: a broker refuses a version that it does not know.
        """
        version = max(time.time_ns() // 1_000_000, than + 1)
        self._announce(version)
        await self._brokers.client.heartbeat()
        self.version = version

    def _announce(self, version: int) -> None:
        """Put our subscriptions with this version into the client's next heartbeats."""
        settings = self._settings
        subscriptions = tuple(subscription.data(version) for subscription in self._subscriptions.values())
        self._brokers.client.add_consumer(
            ConsumerData(settings.group, subscriptions, message_model=settings.model.value, consume_from=settings.start.value)
        )

    async def _join_problem(self, topic: str) -> MqbridgeError | bool:
        """Query one broker of the topic for the members; return False if it lists us.

        Returns True if it does not list us. Returns an error if a later query may succeed, as after a missing route, and raises
        other ClusterErrors.
        """
        client = self._brokers.client
        try:
            route = await client.routes.get(topic)
            if route is None:
                return ClusterError(f"no name server knows topic {topic} now")
            return client.client_id not in (await self._query_members(route) or ())
        except (ConnectionLost, ProtocolError) as error:
            return error
        except ServerRefused as error:
            if error.failure in (Failure.RETRY, Failure.REFRESH):
                return error
            raise

    async def leave(self) -> None:
        """Unregister this member at the brokers."""
        await self._brokers.client.remove_consumer(self._settings.group)

    async def members(self, route: TopicRoute) -> list[str] | None:
        """Query a broker of this topic for the client ids of the group's members; None if there are none. Raises ClusterError.

        A broker that does not list us may have restarted. Then we send heartbeats and query again, perhaps another broker.
        """
        client_ids = await self._query_members(route)
        client = self._brokers.client
        if client_ids is None or client.client_id not in client_ids:
            await client.heartbeat()
            client_ids = await self._query_members(route)
        return client_ids

    async def living(self, queues: Sequence[Queue]) -> set[str]:
        """Query every master of the topics of these queues, and return all client ids that they list. Raises ClusterError."""
        found: set[str] = set()
        for topic in {queue.topic for queue in queues}:
            if (route := await self._brokers.client.routes.get(topic)) is not None:
                for address in route.masters():
                    found.update(await self._query_members_at(address, topic) or ())
        return found

    async def _query_members(self, route: TopicRoute) -> list[str] | None:
        """Query one master of the topic for the client ids of the group's members; None if it knows none. Raises ClusterError."""
        masters = route.masters()
        if not masters:
            raise ClusterError(f"no broker of topic {route.topic} has a master now", Failure.REFRESH)
        # Every broker of the topic gets the heartbeats of all members.
        return await self._query_members_at(random.choice(masters), route.topic)  # noqa: S311 - not a secret

    async def _query_members_at(self, address: str, topic: str) -> list[str] | None:
        try:
            response = await self._brokers.request_at(
                address, topic, Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(self._settings.group).encode()
            )
        except ServerRefused as error:
            if error.code == Status.SYSTEM_ERROR and error.failure is Failure.RETRY:  # how brokers report a group without members
                return None
            raise
        return list(ConsumerList.decode(response.body).client_ids)

    async def _check_expression(self, subscription: Subscription) -> None:
        """Let every broker check that it can parse the expression, and that filtering by properties is on (CHECK_CLIENT_CONFIG).

        Raises ServerRefused (FATAL) if one cannot filter. Checks nothing if the topic has no route now.
        """
        client = self._brokers.client
        route = await client.routes.get(subscription.topic)
        for address in route.masters() if route is not None else ():
            body = CheckClient(client.client_id, self._settings.group, subscription.data(self.version)).encode()
            try:
                await client.request(address, Code.CHECK_CLIENT_CONFIG, body=body)
            except ServerRefused as error:
                raise ServerRefused(
                    f"{address} cannot filter {subscription.topic} by {subscription.expression!r}: {error}. "
                    "SQL92 needs enablePropertyFilter=true at every broker",
                    error.code,
                    Failure.FATAL,
                ) from error
