"""Creation and growth of a topic: gives it a number of writable queues without taking anything from it.

An update replaces all settings of a topic at one broker, whatever they are: a smaller number of queues hides the messages in the
other ones. Brokers do not compare versions, so another client may change a topic between our query and our update. So a change
queries each broker directly before its update, raises only the numbers of queues, and queries again later.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.rocketmq.client.admin.admin import ROUTE_POLL_S, ROUTE_TIMEOUT_S, Admin
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.connection.route_table import RouteTable
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.routes import Perm

log = logging.getLogger(__name__)

SETTLE_S = 0.3
"""Pause between an update and the next query. Another client that queried before our update has sent its own by then."""


class TopicGrowth:
    """Gives one topic at least `queues` writable queues. The name must be valid, and `queues` positive.

    `known` are brokers that may have queues of the topic, besides those in the routes that this client has received.
    """

    def __init__(self, admin: Admin, routes: RouteTable, topic: str, queues: int, known: Collection[str] = frozenset()) -> None:
        self._admin, self._routes, self._known = admin, routes, frozenset(known)
        self._topic, self._queues = topic, queues

    async def run(self, timeout: float = ROUTE_TIMEOUT_S) -> None:
        """Create the topic at every master, or grow it at the brokers that have it; return when the route has the queues.

        Each broker keeps its other settings, and at least its numbers of readable and writable queues. A broker that has enough
        queues is not changed. Raises ClusterError before any change if a broker of the topic is absent or its settings cannot be
        queried, and RequestTimeout if the queues are not in the route after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self._has_queues(route := await self._routes.get(self._topic, fresh=True)):
                    masters = await self._admin.masters()
                    self._check_complete(route, masters)
                    targets = self._plan(await self._query_configs(route, masters), masters)
                    for broker, level in targets.items():
                        await self._raise(broker, masters[broker], level)
                    await asyncio.sleep(SETTLE_S if targets else ROUTE_POLL_S)
        except TimeoutError as error:
            problem = f"topic {self._topic} has fewer than {self._queues} writable queues in its route after {timeout:g} s"
            raise RequestTimeout(f"{problem}: do its brokers reach the name servers, and do they accept messages?") from error

    def _has_queues(self, route: TopicRoute | None) -> bool:
        return route is not None and len(route.write_queues()) >= self._queues

    def _check_complete(self, route: TopicRoute | None, masters: Mapping[str, str]) -> None:
        """Raise ClusterError if a broker of the topic is absent, or if its queues have a fixed list.

        A name server drops a broker that stops from every route. The queues of that broker are then missing only for a while, and
        queues added elsewhere would remain when it returns. A broker that is known, or that this client has seen in the route,
        counts as absent while no master of it is registered.
        """
        if route is not None and route.is_fixed:
            problem = f"topic {self._topic} has a fixed list of {len(route.write_queues())} queues at the name servers"
            raise ClusterError(f"{problem}, and {self._queues} are needed: change its order configuration", Failure.FATAL)
        if route is not None and (closed := sorted({queue.broker for queue in route.frozen_queues})):
            problem = f"topic {self._topic} is not changed while its brokers {', '.join(closed)} do not permit writing it"
            raise ClusterError(f"{problem}: their queues would be replaced by others for good", Failure.RETRY)
        if absent := sorted((self._known | self._routes.known_brokers(self._topic)) - masters.keys()):
            problem = f"topic {self._topic} is not changed while its brokers {', '.join(absent)} have no registered master"
            raise ClusterError(f"{problem}: their queues are missing from its route", Failure.RETRY)

    async def _query_configs(self, route: TopicRoute | None, masters: Mapping[str, str]) -> dict[str, TopicConfig]:
        """Return the settings of the topic at each broker that has it, by broker name.

        Every master is queried, because a topic that another client has just created reaches the route broker by broker. A broker
        that does not respond is an error, except beside a route without it: then it does not have the topic.
        """
        configs = {}
        for broker, address in masters.items():
            try:
                config = await self._admin.topic_config_at(address, self._topic)
            except ClusterError as error:
                if route is not None and broker not in route.brokers:
                    continue
                problem = f"topic {self._topic} is not changed, because its settings at broker {broker} cannot be queried"
                raise ClusterError(f"{problem}: {error}", error.failure) from error
            if config is not None:
                configs[broker] = config
        return configs

    def _plan(self, configs: Mapping[str, TopicConfig], masters: Mapping[str, str]) -> dict[str, int]:
        """Return the new number of writable queues of each broker that needs more; empty if their sum suffices already.

        A topic that no broker has is created at every master. Brokers at which the topic is not writable are left out.
        """
        if configs:
            counts = {broker: config.write_queues for broker, config in configs.items() if config.perm & Perm.WRITE}
        else:
            counts = dict.fromkeys(masters, 0)
        if not counts:
            problem = f"topic {self._topic} is not writable at any of its brokers ({', '.join(configs)})"
            raise ClusterError(f"{problem}: give it write permission", Failure.FATAL)
        if sum(counts.values()) >= self._queues:
            return {}
        level = level_for(counts.values(), self._queues)
        return {broker: level for broker, count in counts.items() if count < level}

    async def _raise(self, broker: str, address: str, level: int) -> None:
        """Raise the topic to at least `level` readable and writable queues at one broker, unless it has them by now."""
        try:
            current = await self._admin.topic_config_at(address, self._topic) or TopicConfig(self._topic, 0, 0)
            if current.write_queues < level:
                grown = replace(current, read_queues=max(current.read_queues, level), write_queues=level)
                await self._admin.update_topic_at(address, grown)
                text = "topic %s: broker %s has %d writable queues now, before it had %d"
                log.info(text, self._topic, broker, level, current.write_queues)
        except ClusterError as error:
            problem = f"topic {self._topic} was not given {level} queues at broker {broker}"
            raise ClusterError(f"{problem}: {error}", error.failure) from error


def level_for(counts: Iterable[int], total: int) -> int:
    """Return the smallest number to which all lower counts must be raised to make the sum at least `total`.

    The sum of `counts` is lower than `total`.
    """
    lower, missing = sorted(counts), total
    while (level := -(-missing // len(lower))) <= lower[-1]:  # rounded up; the largest count stays as it is
        missing -= lower.pop()
    return level
