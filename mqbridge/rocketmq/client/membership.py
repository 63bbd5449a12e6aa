"""Group membership: a member's heartbeat data, joining, and the list of members."""

import asyncio
import logging
import random
import time

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ProtocolError, ServerRefused
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.client.subscription import Subscription, everything, retry_topic
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, ConsumerData, ConsumerList, SubscriptionData
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.tags import SQL92

log = logging.getLogger(__name__)

JOIN_TRIES = 10
JOIN_PAUSE_S = 0.5
"""Normally a broker knows the group once it answers a heartbeat; retries are for overloaded brokers and lost heartbeats."""


class Membership:
    """One member of one group. `topics` are those of its subscriptions and, in clustering, the retry topic."""

    def __init__(self, brokers: Brokers, settings: ConsumerSettings) -> None:
        self.version = time.time_ns() // 1_000_000
        """subVersion: brokers keep the newest of a group, and refuse pulls with a newer one."""
        self._brokers, self._settings = brokers, settings
        self._subscriptions = {subscription.topic: subscription for subscription in settings.subscriptions}
        if settings.model is MessageModel.CLUSTERING and settings.retries:
            retries = everything(retry_topic(settings.group))
            self._subscriptions.setdefault(retries.topic, retries)
        self.topics = list(self._subscriptions)

    def subscription(self, topic: str) -> Subscription:
        """Return our subscription to a topic."""
        return self._subscriptions[topic]

    def data(self) -> list[SubscriptionData]:
        """Return all subscriptions in the form of heartbeats."""
        return [subscription.data(self.version) for subscription in self._subscriptions.values()]

    async def join(self) -> None:
        """Have SQL92 expressions checked, and send heartbeats until the brokers list us as a member.

        Raises ClusterError: FATAL for a bad filter or a group that brokers ignore.
        """
        for subscription in self._settings.subscriptions:
            if subscription.kind == SQL92:
                await self._check(subscription)
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

    async def renew(self, after: int) -> None:
        """Announce our subscriptions again, with a version newer than `after`; pulls use it once the brokers know it."""
        version = max(time.time_ns() // 1_000_000, after + 1)
        self._announce(version)
        await self._brokers.client.heartbeat()
        self.version = version

    def _announce(self, version: int) -> None:
        settings = self._settings
        subscriptions = tuple(subscription.data(version) for subscription in self._subscriptions.values())
        self._brokers.client.add_consumer(
            ConsumerData(settings.group, subscriptions, model=settings.model.value, start=settings.start.value)
        )

    async def _join_problem(self, topic: str) -> MqbridgeError | bool:
        """Return False if all brokers list this client as a member, True if one does not, or the transient error of a query.

        Raises other ClusterErrors.
        """
        client = self._brokers.client
        try:
            route = await client.routes.get(topic)
            return route is None or client.client_id not in (await self._list(route) or ())
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
        """Return the ids of the group's members from a broker of this topic; None if it knows none. Raises ClusterError.

        If it does not know us, it gets a heartbeat and the query is repeated: it may have restarted.
        """
        listed = await self._list(route)
        client = self._brokers.client
        if listed is None or client.client_id not in listed:
            await client.heartbeat()
            listed = await self._list(route)
        return listed

    async def _list(self, route: TopicRoute) -> list[str] | None:
        masters = route.masters()
        if not masters:
            raise ClusterError(f"no broker of {route.topic} has a master", Failure.REFRESH)
        address = random.choice(masters)  # noqa: S311 - any will do; all are told the same
        try:
            answer = await self._brokers.ask_at(
                address, route.topic, Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(self._settings.group).encode()
            )
        except ServerRefused as error:
            if error.code == Status.SYSTEM_ERROR and error.failure is Failure.RETRY:  # a broker's response for "none"
                return None
            raise
        return list(ConsumerList.decode(answer.body).client_ids)

    async def _check(self, subscription: Subscription) -> None:
        """CHECK_CLIENT_CONFIG: check that every broker of the topic can parse the expression and filters by properties."""
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
