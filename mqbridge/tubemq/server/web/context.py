"""What all pages share: the Broker and the consumers, the address that clients are told, and what clients may change."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.addresses import split_address
from mqbridge.tubemq.server.broker import BROKER_ID, ServedBroker
from mqbridge.tubemq.server.consumers import Consumers
from mqbridge.tubemq.server.support import NOT_MANAGED
from mqbridge.tubemq.server.web.answers import WebRefusal
from mqbridge.tubemq.server.web.requests import Parameters
from mqbridge.tubemq.wire.string_formats import DEFAULT_BROKER_PORT

MAX_CALLS = 16
"""Maximum number of requests to the cluster at once for one HTTP request."""
MAX_LISTED, MAX_PARTITIONS = 5000, 10_000
"""Maximum number of topics in a list, and of partitions whose offsets are shown: the cluster is asked for each of them."""
DEFAULT_HTTP_PORT = 80

Item = TypeVar("Item")
Found = TypeVar("Found")


class BrokerAddress(NamedTuple):
    """Where clients and tools find the Broker."""

    host: str
    port: int
    web_port: int


class TopicBounds(NamedTuple):
    """A topic, and the offsets of the first and the next message of each of its partitions, by index."""

    topic: ListenedTopic
    bounds: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class WebContext:
    """See the module."""

    broker: ServedBroker
    consumers: Consumers

    def address(self, request: Request) -> BrokerAddress:
        """Return the configured address of the listener, or its port at the host that the request has reached."""
        services, url = self.broker.services, request.url
        host, port = url.hostname or "127.0.0.1", services.port()
        if services.advertise is not None:
            host, port = split_address(services.advertise, DEFAULT_BROKER_PORT)
        return BrokerAddress(f"[{host}]" if ":" in host else host, port, url.port or DEFAULT_HTTP_PORT)

    def check_manage(self, action: str) -> None:
        """Raise WebRefusal unless tools may change what exists; `action` is what the client wants to do."""
        if not self.broker.services.may_manage:
            raise WebRefusal(f"this listener does not permit its clients to {action}: {NOT_MANAGED}")

    async def topics(self, names: Iterable[str]) -> list[ListenedTopic]:
        """Return those of these topics that exist, or all if there are no names. Raises WebRefusal if there are too many."""
        wanted = list(names)
        if not wanted:
            wanted = await self.broker.services.topics.names()
            if len(wanted) > MAX_LISTED:
                raise WebRefusal(f"there are more than {MAX_LISTED} topics: name those that you want")
        found = await for_each(wanted, self.broker.find_topic)
        return [topic for topic in found if topic is not None]

    async def with_bounds(self, topics: Iterable[ListenedTopic]) -> list[TopicBounds]:
        """Return the offsets of topics. Raises WebRefusal if they have too many partitions."""
        found = [TopicBounds(topic, {}) for topic in topics]
        keys = [(each, index) for each in found for index in sorted(each.topic.partitions)]
        if len(keys) > MAX_PARTITIONS:
            raise WebRefusal(f"these topics have more than {MAX_PARTITIONS} partitions: name fewer topics")

        async def ask(key: tuple[TopicBounds, int]) -> None:
            each, index = key
            first, end = await self.broker.bounds_of(each.topic, index)
            each.bounds[index] = self.broker.offset(first), self.broker.offset(end)

        await for_each(keys, ask)
        return found


def asks_for_broker(parameters: Parameters) -> bool:
    """Return True unless a request is about other Brokers only."""
    ids = parameters.numbers("brokerId")
    return not ids or BROKER_ID in ids


async def for_each(items: Iterable[Item], ask: Callable[[Item], Awaitable[Found]]) -> list[Found]:
    """Ask about each item, about MAX_CALLS of them at once; return the answers in the same order."""
    remaining, found = list(items), list[Found]()
    for begin in range(0, len(remaining), MAX_CALLS):
        answers = await asyncio.gather(*map(ask, remaining[begin : begin + MAX_CALLS]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
    return found
