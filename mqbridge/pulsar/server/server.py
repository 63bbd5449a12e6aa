"""The server for Pulsar clients: makes the sessions of connections, and sends the clients away at the end."""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from mqbridge.listener.server import ServerCounts, Services
from mqbridge.net.listen import ClientSession
from mqbridge.pulsar.server.broker import Broker
from mqbridge.pulsar.server.connection import ServedConnection
from mqbridge.pulsar.server.served_clients import ServedClients
from mqbridge.pulsar.server.web.app import make_web_app
from mqbridge.pulsar.wire import codes, ids, server_commands

DRAIN_CHECK_S = 0.02
"""Pause between two checks whether everything in flight is answered."""


class PulsarServer:
    """See `mqbridge.listener.server.ProtocolServer`."""

    refusal = server_commands.error(ids.NO_REQUEST, codes.NOT_ALLOWED, "the listener has too many connections")

    def __init__(self, services: Services) -> None:
        self.broker = Broker(services)
        self.web = make_web_app(services, ServedClients(self.broker), self._advertised)
        """The web application."""
        self._connections: set[ServedConnection] = set()

    @property
    def counts(self) -> ServerCounts:
        """Present numbers and totals."""
        return self.broker.counts

    def _advertised(self, request: Request) -> str:
        """Return the address of the binary protocol: the configured one, or its port at the host that the request has reached."""
        services = self.broker.services
        if services.advertise is not None:
            return services.advertise
        host = request.url.hostname or "127.0.0.1"
        return f"[{host}]:{services.port()}" if ":" in host else f"{host}:{services.port()}"

    def make_session(self) -> ClientSession:
        """Make the session of a new connection."""
        return ServedConnection(self.broker, self._on_connection)

    def _on_connection(self, connection: ServedConnection, is_open: bool) -> None:
        if is_open:
            self._connections.add(connection)
        else:
            self._connections.discard(connection)

    async def start(self) -> None:
        """Read the schemas of all topics. Raises ClusterError."""
        await self.broker.schemas.start()

    async def close(self, deadline: float) -> None:
        """Stop following the schemas of other gateways."""
        await self.broker.schemas.close(deadline)

    async def drain(self, deadline: float) -> None:
        """Answer what is in flight, wait for acknowledgements, and close the producers, the consumers and the connections."""
        self.broker.is_draining = True
        producers = [producer for connection in self._connections for producer in connection.producers.values()]
        for producer in producers:
            producer.is_draining = True
        subscriptions = list(self.broker.all_subscriptions())
        await asyncio.gather(
            *(subscription.finish(deadline) for subscription in subscriptions if subscription.is_durable),
            self._wait_answered(deadline),
        )
        for connection in list(self._connections):
            for producer in list(connection.producers.values()):
                connection.drop_producer(producer)
        for subscription in subscriptions:
            subscription.send_away()
        await asyncio.gather(*(connection.close() for connection in list(self._connections)))

    async def _wait_answered(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while any(each.pending_sends for each in self._connections) and loop.time() < deadline:  # noqa: ASYNC110 - of many
            await asyncio.sleep(DRAIN_CHECK_S)

    def describe(self) -> Mapping[str, Any]:
        """Return the producers and the subscriptions of each partition."""
        producers = [
            {
                "topic": backing,
                "partition": partition,
                "name": each.name,
                "address": each.link.peer,
                "messages": each.received_messages,
            }
            for (backing, partition), found in self.broker.producers.items()
            for each in found.by_name.values()
        ]
        subscriptions = [
            {
                "topic": each.topic,
                "partition": each.feed.key.partition,
                "name": each.name,
                "type": each.type_name,
                "held": each.feed.is_held,
                "problem": each.feed.problem,
                "consumers": [
                    {
                        "name": consumer.name,
                        "address": consumer.link.peer,
                        "permits": consumer.permits,
                        "unacknowledged": consumer.unacknowledged_messages,
                    }
                    for consumer in each.consumers
                ],
            }
            for each in self.broker.all_subscriptions()
        ]
        return {"producers": producers[:MAX_DESCRIBED], "subscriptions": subscriptions[:MAX_DESCRIBED]}


MAX_DESCRIBED = 1000
"""Maximum number of producers and of subscriptions that are described."""
