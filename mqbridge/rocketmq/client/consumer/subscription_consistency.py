"""Checks that all members of a group have the same subscriptions; otherwise the group loses messages.

A broker keeps one set of subscriptions per group, that of the last heartbeat, and every member divides the queues of its topics
among all members. So if subscriptions differ, queues are assigned to members that do not read their topic, the filter of one
member replaces that of another, and a commit moves a queue past messages that another member wanted. Therefore a consumer does
not join such a group, and leaves it when a member with other subscriptions joins.

How a difference is seen: each heartbeat replaces the set at the broker, so after a heartbeat of the other member, the broker
reports that member's subscriptions until our next heartbeat. We query every broker of our topics with every rebalance. Brokers
notify the members when the group's topics change, and this starts a rebalance, too. A broker that cannot respond is skipped.

A difference may remain without another member. For each topic a broker keeps the subscription with the highest version, even
after the member that sent it has left, and filters the messages of all members by it. So if we are the only member, we announce
our own subscriptions with a higher version.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.consumer.subscription import RETRY_PREFIX
from mqbridge.rocketmq.wire.bodies.connections import ConsumerConnections
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.tags import SEPARATOR

log = logging.getLogger(__name__)

CONNECTION_LIST_RESPONSES = frozenset({Status.SUCCESS, Status.CONSUMER_NOT_ONLINE})
"""Codes of the response to a query of the members; CONSUMER_NOT_ONLINE: there are none."""

Filters = Mapping[str, tuple[str, str]]
"""Type of the expression (TAG or SQL92) and the expression (`*`: all messages), by topic."""


class SubscriptionConsistency:
    """Compares a member's subscriptions with those that brokers have for the group.

    `announce_newer` announces the member's subscriptions again, with a version above its argument.
    """

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        subscriptions: Iterable[SubscriptionData],
        announce_newer: Callable[[int], Awaitable[None]],
    ) -> None:
        self._brokers, self._group, self._announce_newer = brokers, group, announce_newer
        self._own_filters = _filters(subscriptions)

    async def check(self) -> None:
        """Raise ClusterError (RETRY) if a member has different subscriptions; the error lists both.

        Subscriptions that a former member has left at the brokers are replaced first.
        """
        reports = await self._query_all()
        if stale_reports := self._stale_reports(reports):
            log.info(
                "group %s: a member that has left had other subscriptions, which the brokers still use; announcing ours: %s",
                self._group,
                _format(self._own_filters),
            )
            await self._announce_newer(max(item.version for report in stale_reports for item in report.subscriptions))
            reports = await self._query_all()
        for report in reports:
            self._check_report(report)

    async def _query_all(self) -> list[ConsumerConnections]:
        """Query every master of our topics for the group's members and subscriptions; return the reports that arrive."""
        routes = self._brokers.client.routes
        own_routes = [route for topic in self._own_filters if (route := routes.last_known(topic)) is not None]
        addresses = dict.fromkeys(address for route in own_routes for address in route.masters())
        reports = await asyncio.gather(*map(self._query, addresses))
        return [report for report in reports if report is not None]

    async def _query(self, address: str) -> ConsumerConnections | None:
        """Return the report of one broker; None if it knows no member of the group, or the query fails."""
        ext = GroupHeader(self._group).encode()
        code, accept = Code.GET_CONSUMER_CONNECTION_LIST, CONNECTION_LIST_RESPONSES
        try:
            response = await self._brokers.client.request(address, code, ext, accept=accept)
            return ConsumerConnections.decode(response.body) if response.code == Status.SUCCESS else None
        except (ClusterError, ProtocolError) as error:
            log.debug(
                "group %s: querying the members' subscriptions at broker %s failed, comparing only those of other brokers: %s",
                self._group,
                address,
                error,
            )
            return None

    def _stale_reports(self, reports: Collection[ConsumerConnections]) -> list[ConsumerConnections]:
        """Return the reports whose subscriptions differ from ours, if we are the only member in all reports; else none."""
        members = {connection.client_id for report in reports for connection in report.connections}
        if members != {self._brokers.client.client_id}:
            return []
        return [report for report in reports if report.subscriptions and _filters(report.subscriptions) != self._own_filters]

    def _check_report(self, report: ConsumerConnections) -> None:
        """Raise ClusterError if a broker reports other members, and subscriptions that are not ours."""
        own_id = self._brokers.client.client_id
        others = [connection for connection in report.connections if connection.client_id != own_id]
        their_filters = _filters(report.subscriptions)
        if not others or not their_filters or their_filters == self._own_filters:
            return
        names = ", ".join(f"{connection.client_id} ({connection.address})" for connection in others)
        raise ClusterError(
            f"the members of group {self._group} have different subscriptions: {_format(self._own_filters)} here, "
            f"{_format(their_filters)} at one of {names}. Such a group loses messages: give each member its own group, or all of "
            "them the same topics and filters"
        )


def _filters(subscriptions: Iterable[SubscriptionData]) -> Filters:
    """Return the filters by topic, with sorted tags; without the retry topic, which only some members read."""
    return {
        subscription.topic: (
            subscription.expression_type,
            f" {SEPARATOR} ".join(sorted(subscription.tags)) or subscription.expression,
        )
        for subscription in subscriptions
        if not subscription.topic.startswith(RETRY_PREFIX)
    }


def _format(filters: Filters) -> str:
    """Return text like `topic-a, topic-b (tag-1 || tag-2)`."""
    return ", ".join(
        topic if expression == "*" else f"{topic} ({expression})" for topic, (_, expression) in sorted(filters.items())
    )
