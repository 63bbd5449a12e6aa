"""Sends requests to the broker that currently serves a queue."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.rocketmq.client.connection.base_client import SUCCESS, BaseClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.command import Command

T = TypeVar("T")


class Brokers:
    """Finds the broker of a queue in the topic's route and sends requests to it.

    A failure that a new route may cure invalidates the route, so that the next request queries a name server for it.
    """

    def __init__(self, client: BaseClient) -> None:
        self.client = client

    async def master(self, topic: str, broker: str) -> str:
        """Return the address of a broker's master. Raises ClusterError (`Failure.REFRESH`) if the topic's route contains none."""
        route = await self.client.routes.get_or_last_known(topic)
        address = route.master(broker) if route is not None else None
        if address is None:
            raise self._missing_address(topic, f"master of broker {broker}")
        return address

    async def reader(self, topic: str, broker: str) -> tuple[str, bool]:
        """Return the address to pull from, and True if it is the master's.

        It is the master's address, or without a master that of the slave with the lowest id. Raises ClusterError (REFRESH) if the
        route has no address of this broker.
        """
        if (reader := self.cached_reader(topic, broker)) is not None:
            return reader
        route = await self.client.routes.get_or_last_known(topic)
        address = route.reader(broker) if route is not None else None
        if route is None or address is None:
            raise self._missing_address(topic, f"address of broker {broker}")
        return address, address == route.master(broker)

    def cached_reader(self, topic: str, broker: str) -> tuple[str, bool] | None:
        """Return the result of `reader` from a cached route; None if no route is cached, or it lacks the broker."""
        route = self.client.routes.cached(topic)
        address = route.reader(broker) if route is not None else None
        return None if route is None or address is None else (address, address == route.master(broker))

    def _missing_address(self, topic: str, wanted: str) -> ClusterError:
        """Invalidate the route, and return the error for a wanted address that it lacks."""
        self.client.routes.invalidate(topic)
        return ClusterError(f"the route of topic {topic} contains no {wanted} now", Failure.REFRESH)

    async def request(
        self,
        queue: Queue,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: frozenset[int] = SUCCESS,
    ) -> Command:
        """Send a request to the master of a queue; the other arguments and the errors are those of `BaseClient.request`.

        Also raises ClusterError (REFRESH) while the broker has no master.
        """
        address = await self.master(queue.topic, queue.broker)
        return await self.request_at(address, queue.topic, code, ext, body, timeout=timeout, accept=accept)

    async def request_at(
        self,
        address: str,
        topic: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: frozenset[int] = SUCCESS,
    ) -> Command:
        """Send a request about a topic to this broker; failures that a new route may cure invalidate the route.

        The other arguments and the errors are those of `BaseClient.request`.
        """
        try:
            return await self.client.request(address, code, ext, body, timeout=timeout, accept=accept)
        except ServerRefused as error:
            if error.failure is Failure.REFRESH:
                self.client.routes.invalidate(topic)
            raise
        except Unreachable:
            # This name server may not have noticed yet that the broker is down: query another one.
            self.client.routes.invalidate_and_switch_server(topic)
            raise
        except (ConnectionLost, RequestTimeout):
            self.client.routes.invalidate(topic)
            raise

    async def send_oneway(self, queue: Queue, code: int, ext: Mapping[str, str]) -> None:
        """Send a one-way request to the master of a queue.

        Raises Unreachable, ConnectionLost, RequestTimeout, ClusterError (REFRESH). A failure to connect does not invalidate the
        route.
        """
        await self.client.oneway(await self.master(queue.topic, queue.broker), code, ext)


async def repeat_if_lost(call: Callable[[], Awaitable[T]]) -> T:
    """Send an idempotent request by `call`; if the connection is lost, send it once more, over a new connection."""
    try:
        return await call()
    except ConnectionLost:
        return await call()


def group_by_broker(queues: Sequence[Queue]) -> dict[str, list[Queue]]:
    """Group queues by broker name."""
    broker = attrgetter("broker")
    return {name: list(group) for name, group in groupby(sorted(queues, key=broker), key=broker)}
