"""The server for TubeMQ clients, a Master and a Broker on one port: makes the sessions of connections, and hands out requests."""

import asyncio
from collections.abc import Mapping
from typing import Any

from mqbridge.listener.server import ServerCounts, Services
from mqbridge.net.listen import ClientSession
from mqbridge.tubemq.server.balanced import Balanced
from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.connection import Handler, ServedConnection
from mqbridge.tubemq.server.consumers import Consumers
from mqbridge.tubemq.server.producers import Producers
from mqbridge.tubemq.server.sends import SendRequests
from mqbridge.tubemq.server.web.app import make_web_app
from mqbridge.tubemq.wire import rpc

DRAIN_CHECK_S = 0.02
"""Pause between two checks whether everything in flight is answered."""
MAX_DESCRIBED = 1000
"""Maximum number of producers, and of groups, that are described."""


class TubeMQServer:
    """See `mqbridge.listener.server.ProtocolServer`."""

    refusal = b""

    def __init__(self, services: Services) -> None:
        self.broker = ServedBroker(services)
        self.producers = Producers(self.broker)
        self.sends = SendRequests(self.broker)
        self.consumers = Consumers(self.broker)
        self.balanced = Balanced(self.broker, self.consumers)
        self.web = make_web_app(self.broker, self.consumers)
        """The web application."""
        self._connections: set[ServedConnection] = set()
        self._refused = 0
        self._handlers: Mapping[int, Handler] = {
            rpc.PRODUCER_REGISTER: self.producers.register,
            rpc.PRODUCER_HEARTBEAT: self.producers.heartbeat,
            rpc.PRODUCER_CLOSE: self.producers.close,
            rpc.CONSUMER_REGISTER: self.consumers.register,
            rpc.CONSUMER_HEARTBEAT: self.consumers.heartbeat,
            rpc.CONSUMER_CLOSE: self.consumers.close,
            rpc.SEND: self.sends.serve,
            rpc.PARTITION_REGISTER: self.consumers.register_partition,
            rpc.PARTITION_HEARTBEAT: self.consumers.heartbeat_partitions,
            rpc.GET: self.consumers.get,
            rpc.COMMIT: self.consumers.commit,
            rpc.BALANCED_REGISTER: self.balanced.register,
            rpc.BALANCED_HEARTBEAT: self.balanced.heartbeat,
            rpc.PARTITION_META: self.balanced.meta,
        }

    @property
    def counts(self) -> ServerCounts:
        """Present numbers and totals."""
        return ServerCounts(
            producers=len(self.producers.known),
            consumers=sum(len(group.members) for group in self.consumers.groups.values()),
            refused_requests=self._refused + sum(connection.refused_requests for connection in self._connections),
            **self.broker.totals,
        )

    def make_session(self) -> ClientSession:
        """Make the session of a new connection."""
        services = self.broker.services
        return ServedConnection(self._handlers, self._on_connection, services.in_flight, services.advertise)

    def _on_connection(self, connection: ServedConnection, is_open: bool) -> None:
        if is_open:
            self._connections.add(connection)
            return
        self._connections.discard(connection)
        self._refused += connection.refused_requests
        self.producers.drop(connection)
        self.consumers.drop(connection)

    async def start(self) -> None:
        """Begin to look for what is not used any more."""
        self.producers.start()
        self.consumers.start()
        self.sends.queues.start()

    async def drain(self, deadline: float) -> None:
        """Answer what is in flight, wait for confirmations, and close the connections."""
        self.broker.is_draining = True
        await asyncio.gather(self._wait_answered(deadline), self.consumers.finish(deadline))
        await asyncio.gather(*(connection.close() for connection in list(self._connections)))

    async def _wait_answered(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while self.sends.is_any_pending and loop.time() < deadline:  # noqa: ASYNC110 - of many
            await asyncio.sleep(DRAIN_CHECK_S)

    async def close(self, deadline: float) -> None:  # noqa: ARG002 - nothing waits here
        """End what is left."""
        self.producers.stop()
        self.consumers.stop()
        self.sends.queues.stop()
        await self.consumers.end()

    def describe(self) -> Mapping[str, Any]:
        """Return the producers and the groups of consumers."""
        producers = [
            {"name": client_id, "address": producer.link.peer, "topics": producer.topics}
            for client_id, producer in self.producers.known.items()
        ]
        groups = [
            {
                "name": group.name,
                "topics": sorted(group.terms.topics),
                "consumers": [
                    {
                        "name": member.client_id,
                        "address": member.link.peer,
                        "partitions": sorted(
                            f"{each.topic}:{each.partition}"
                            for each, partition in group.partitions.items()
                            if partition.owner == member.client_id
                        ),
                    }
                    for member in group.members.values()
                ],
                "problem": group.lanes.problem,
            }
            for group in self.consumers.groups.values()
        ]
        return {"producers": producers[:MAX_DESCRIBED], "subscriptions": groups[:MAX_DESCRIBED]}
