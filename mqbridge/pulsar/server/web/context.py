"""What all pages of the web side share, and what they permit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mqbridge.listener.server import Services
from mqbridge.message import Position
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.server.support import NOT_MANAGED
from mqbridge.pulsar.server.web.served import ServedTopics
from mqbridge.pulsar.wire.ids import EntryId

MAX_CALLS = 16
"""Maximum number of requests to the cluster at once for one HTTP request."""

NO_ENTRY_ID: EntryId = (-1, -1)
"""The id of an empty partition of a cluster that does not know where its next message will be."""

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class WebContext:
    """The listener's services, its clients, and the address for clients of the binary protocol.

    `advertised` returns this address as `host:port`.
    """

    services: Services
    served: ServedTopics
    advertised: Callable[[Request], str]

    @property
    def ids(self) -> MessageIds:
        """Message ids of the listener."""
        return MessageIds(self.services.numbering)

    def id_of(self, position: Position) -> EntryId:
        """Return the id of the entry that begins at a position; NO_ENTRY_ID for one before all entries, which has no number."""
        try:
            return self.ids.entry_id(self.services.numbering.number(position))
        except ValueError:
            return NO_ENTRY_ID

    def service_url(self, request: Request) -> str:
        """Return the service URL of the binary protocol."""
        return f"pulsar://{self.advertised(request)}"

    def web_url(self, request: Request) -> str:
        """Return the URL of this web address, as the client wrote it."""
        return f"{request.url.scheme}://{request.url.netloc}"

    def check_manage(self, action: str) -> None:
        """Raise HTTPException unless tools may change what exists; `action` is what the client wants to do."""
        if not self.services.may_manage:
            reason = f"this listener does not permit its clients to {action}: {NOT_MANAGED}"
            raise HTTPException(HTTPStatus.FORBIDDEN, reason)

    def check_create(self, what: str) -> None:
        """Raise HTTPException unless clients may create topics and subscriptions."""
        if not self.services.topics.can_create:
            reason = f"this listener does not permit its clients to create {what}: set `create` in its configuration"
            raise HTTPException(HTTPStatus.FORBIDDEN, reason)


async def for_each(items: Iterable[Item], ask: Callable[[Item], Awaitable[Found]]) -> list[Found]:
    """Ask the cluster about each item, about MAX_CALLS of them at once; return the answers in the same order."""
    remaining, found = list(items), list[Found]()
    while remaining:
        answers = await asyncio.gather(*map(ask, remaining[:MAX_CALLS]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        remaining = remaining[MAX_CALLS:]
    return found
