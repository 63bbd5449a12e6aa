"""What brokers know of a member: its heartbeat data, and who else is in the group."""

import asyncio
import logging
import random
import time

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ProtocolError, ServerRefused
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.client.spec import GroupSpec, Model
from mqbridge.rocketmq.client.subscription import Subscription, everything, retry_topic
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, ConsumerData, ConsumerList, SubscriptionData
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.tags import SQL92

log = logging.getLogger(__name__)

JOIN_TRIES = 10
JOIN_PAUSE_S = 0.5
"""A broker answers a heartbeat when it knows the group; only one that is overloaded or drops the heartbeat needs these."""


class Membership:
    """One member of one group. `topics` are its subscriptions' and, in clustering, that of the messages it sent back."""

    def __init__(self, brokers: Brokers, spec: GroupSpec) -> None:
        self.version = time.time_ns() // 1_000_000
        """subVersion: brokers keep the newest of a group, and refuse pulls that are newer than what they have."""
        self._brokers, self._spec = brokers, spec
        self._subscriptions = {subscription.topic: subscription for subscription in spec.subscriptions}
        if spec.model is Model.CLUSTERING and spec.retries:
            retries = everything(retry_topic(spec.group))
            self._subscriptions.setdefault(retries.topic, retries)
        self.topics = list(self._subscriptions)

    def subscription(self, topic: str) -> Subscription:
        """What we read of a topic."""
        return self._subscriptions[topic]

    def data(self) -> list[SubscriptionData]:
        """All subscriptions as heartbeats say them."""
        return [subscription.data(self.version) for subscription in self._subscriptions.values()]

    async def join(self) -> None:
        """Have SQL92 expressions checked, and tell the brokers of us until they count us in.

        Raises ClusterError: FATAL for a bad filter or a group that brokers ignore.
        """
        for subscription in self._spec.subscriptions:
            if subscription.kind == SQL92:
                await self._check(subscription)
        client = self._brokers.client
        self._say(self.version)
        topic = self._spec.subscriptions[0].topic
        for _ in range(JOIN_TRIES):
            await client.heartbeat()
            problem = await self._missing(topic)
            if not problem:
                return
            await asyncio.sleep(JOIN_PAUSE_S)
        if isinstance(problem, MqbridgeError):
            raise ClusterError(f"group {self._spec.group} could not be joined: {problem}") from problem
        raise ClusterError(
            f"the brokers of {topic} do not list {client.client_id} as a member of group {self._spec.group}, though it sent "
            f"{JOIN_TRIES} heartbeats. Brokers with autoCreateSubscriptionGroup=false ignore groups that do not exist: create it",
            Failure.FATAL,
        )

    async def renew(self, after: int) -> None:
        """Tell the brokers our subscriptions again, under a version that is newer than `after`; pulls say it when it is known."""
        version = max(time.time_ns() // 1_000_000, after + 1)
        self._say(version)
        await self._brokers.client.heartbeat()
        self.version = version

    def _say(self, version: int) -> None:
        spec = self._spec
        subscriptions = tuple(subscription.data(version) for subscription in self._subscriptions.values())
        self._brokers.client.add_consumer(ConsumerData(spec.group, subscriptions, model=spec.model.value, start=spec.start.value))

    async def _missing(self, topic: str) -> MqbridgeError | bool:
        """Whether a broker does not list us, or the passing reason why it could not say. Raises ClusterError for others."""
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
        """Tell the brokers that this member goes."""
        await self._brokers.client.remove_consumer(self._spec.group)

    async def members(self, route: TopicRoute) -> list[str] | None:
        """The ids of the group's members, as a broker of this topic sees them; None when it knows of none. Raises ClusterError.

        When it does not know us, it is told and asked again: it may have been restarted.
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
                address, route.topic, Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(self._spec.group).encode()
            )
        except ServerRefused as error:
            if error.code == Status.SYSTEM_ERROR and error.failure is Failure.RETRY:  # how a broker says "none"
                return None
            raise
        return list(ConsumerList.decode(answer.body).client_ids)

    async def _check(self, subscription: Subscription) -> None:
        """CHECK_CLIENT_CONFIG: whether every broker of the topic can read the expression and filters by properties."""
        client = self._brokers.client
        route = await client.routes.get(subscription.topic)
        for address in route.masters() if route is not None else ():
            body = CheckClient(client.client_id, self._spec.group, subscription.data(self.version)).encode()
            try:
                await client.request(address, Code.CHECK_CLIENT_CONFIG, body=body)
            except ServerRefused as error:
                raise ServerRefused(
                    f"{address} cannot filter {subscription.topic} by {subscription.expression!r}: {error}. "
                    "SQL92 needs enablePropertyFilter=true at every broker",
                    error.code,
                    Failure.FATAL,
                ) from error
