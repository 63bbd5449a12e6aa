"""Whether all members of a group subscribe to the same topics with the same filters; a group that does not loses messages.

A broker keeps one set of subscriptions per group, that of the last heartbeat, and every member divides the queues of its topics
among all members. So where subscriptions differ, queues are given to members that do not read their topic, a filter takes the
place of another member's, and whoever commits a queue moves it past what others wanted. Therefore such a group is not joined,
and it is left when another member comes that differs: who stays gets everything.

Members that differ replace each other's set, and the broker tells the group of each change of topics. We look at the set then and
with every round, at every broker of our topics: it shows the other's subscriptions until our next heartbeat. A broker that
cannot say is passed over.

Of each topic a broker keeps the subscription of the newest version, also when whoever said it is gone. Then it filters by that
what others read, and a look at the set blames them. Who is the only member therefore says its own again, as the newest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.subscription import RETRY_PREFIX
from mqbridge.rocketmq.wire.bodies.connections import ConsumerConnections
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.tags import SEPARATOR

log = logging.getLogger(__name__)

ONLINE = frozenset({Status.SUCCESS, Status.CONSUMER_NOT_ONLINE})

Filters = Mapping[str, tuple[str, str]]
"""Kind and expression by topic."""


class GroupAgreement:
    """The subscriptions of one member, compared with those of the others. `renew` says them again, newer than a version."""

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        subscriptions: Iterable[SubscriptionData],
        renew: Callable[[int], Awaitable[None]],
    ) -> None:
        self._brokers, self._group, self._renew = brokers, group, renew
        self._ours = _filters(subscriptions)

    async def check(self) -> None:
        """Raises ClusterError (RETRY), which names the others and what they read, when members subscribe to something else."""
        found = await self._look()
        if left_behind := self._left_behind(found):
            log.info("group %s reads %s: what a member that is gone subscribed to is replaced", self._group, _shown(self._ours))
            await self._renew(max(one.version for found in left_behind for one in found.subscriptions))
            found = await self._look()
        for one in found:
            self._compare(one)

    async def _look(self) -> list[ConsumerConnections]:
        routes = self._brokers.client.routes
        known = [route for topic in self._ours if (route := routes.known(topic)) is not None]
        addresses = dict.fromkeys(address for route in known for address in route.masters())
        return [found for found in await asyncio.gather(*map(self._ask, addresses)) if found is not None]

    async def _ask(self, address: str) -> ConsumerConnections | None:
        ext = GroupHeader(self._group).encode()
        try:
            answer = await self._brokers.client.request(address, Code.GET_CONSUMER_CONNECTION_LIST, ext, accept=ONLINE)
            return ConsumerConnections.decode(answer.body) if answer.code == Status.SUCCESS else None
        except (ClusterError, ProtocolError) as error:
            log.debug("%s does not say what the members of group %s read: %s", address, self._group, error)
            return None

    def _left_behind(self, found: Collection[ConsumerConnections]) -> list[ConsumerConnections]:
        """Where the set is not ours, while nobody else is at any broker who could have said it."""
        if {connection.client_id for one in found for connection in one.connections} != {self._brokers.client.client_id}:
            return []
        return [one for one in found if one.subscriptions and _filters(one.subscriptions) != self._ours]

    def _compare(self, found: ConsumerConnections) -> None:
        own = self._brokers.client.client_id
        others = [one for one in found.connections if one.client_id != own]
        theirs = _filters(found.subscriptions)
        if not others or not theirs or theirs == self._ours:
            return
        names = ", ".join(f"{one.client_id} ({one.address})" for one in others)
        raise ClusterError(
            f"the members of group {self._group} subscribe to different things: {_shown(self._ours)} here, {_shown(theirs)} at "
            f"one of {names}. Messages of such a group are lost: give each its own group, or all the same topics and filters"
        )


def _filters(subscriptions: Iterable[SubscriptionData]) -> Filters:
    """Without the retry topic, which only some members read; tags in any order are the same."""
    return {
        one.topic: (one.kind, f" {SEPARATOR} ".join(sorted(one.tags)) or one.expression)
        for one in subscriptions
        if not one.topic.startswith(RETRY_PREFIX)
    }


def _shown(filters: Filters) -> str:
    return ", ".join(
        topic if expression == "*" else f"{topic} ({expression})" for topic, (_, expression) in sorted(filters.items())
    )
