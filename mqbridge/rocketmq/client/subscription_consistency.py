"""Checks that all members of a group have the same subscriptions; a group whose members differ loses messages.

A broker keeps one set of subscriptions per group, that of the last heartbeat, and every member divides the queues of its topics
among all members. So if subscriptions differ, queues go to members that do not read their topic, one member's filter replaces
another's, and a commit moves a queue past messages that others wanted. Therefore such a group is not joined, and it is left when
a member with other subscriptions joins: the remaining members get everything.

Members that differ replace each other's set, and the broker notifies the group of each change of topics. The set is checked then,
and with every rebalance, at every broker of our topics: it shows the other member's subscriptions until our next heartbeat. A
broker that cannot answer is skipped.

For each topic a broker keeps the subscription with the newest version, even after its member is gone. It then filters the
messages of others by it, and the set seems to blame them. So the only member of a group announces its own subscriptions again,
as the newest.
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
"""Expression type and expression, by topic."""


class SubscriptionConsistency:
    """Compares a member's subscriptions with those of the others. `renew` announces them again, newer than a version."""

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
        """Raise ClusterError (RETRY) if a member has different subscriptions; the error lists both.

        Subscriptions that a former member left at the brokers are replaced first.
        """
        found = await self._query()
        if stale := self._stale_subscriptions(found):
            log.info("group %s reads %s: replacing the subscriptions of a member that is gone", self._group, _format(self._ours))
            await self._renew(max(subscription.version for group in stale for subscription in group.subscriptions))
            found = await self._query()
        for one in found:
            self._compare(one)

    async def _query(self) -> list[ConsumerConnections]:
        routes = self._brokers.client.routes
        known = [route for topic in self._ours if (route := routes.last_known(topic)) is not None]
        addresses = dict.fromkeys(address for route in known for address in route.masters())
        return [found for found in await asyncio.gather(*map(self._ask, addresses)) if found is not None]

    async def _ask(self, address: str) -> ConsumerConnections | None:
        ext = GroupHeader(self._group).encode()
        try:
            answer = await self._brokers.client.request(address, Code.GET_CONSUMER_CONNECTION_LIST, ext, accept=ONLINE)
            return ConsumerConnections.decode(answer.body) if answer.code == Status.SUCCESS else None
        except (ClusterError, ProtocolError) as error:
            log.debug("%s cannot report the subscriptions of group %s: %s", address, self._group, error)
            return None

    def _stale_subscriptions(self, found: Collection[ConsumerConnections]) -> list[ConsumerConnections]:
        """Return the brokers' subscriptions that differ from ours although the group has no other member."""
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
            f"the members of group {self._group} subscribe to different things: {_format(self._ours)} here, {_format(theirs)} at "
            f"one of {names}. Messages of such a group are lost: give each its own group, or all the same topics and filters"
        )


def _filters(subscriptions: Iterable[SubscriptionData]) -> Filters:
    """Return filters by topic, tags sorted, without the retry topic, which only some members read."""
    return {
        one.topic: (one.expression_type, f" {SEPARATOR} ".join(sorted(one.tags)) or one.expression)
        for one in subscriptions
        if not one.topic.startswith(RETRY_PREFIX)
    }


def _format(filters: Filters) -> str:
    return ", ".join(
        topic if expression == "*" else f"{topic} ({expression})" for topic, (_, expression) in sorted(filters.items())
    )
