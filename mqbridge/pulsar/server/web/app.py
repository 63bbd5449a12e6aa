"""The application: all pages, and what holds for each request."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqbridge.listener.server import Services
from mqbridge.pulsar.server.support import UNKNOWN_REQUEST
from mqbridge.pulsar.server.web.answers import ERROR_HANDLERS, NO_ANSWER_IN_TIME, refusal
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.server.web.health import HealthPages
from mqbridge.pulsar.server.web.lookup import LookupPages
from mqbridge.pulsar.server.web.messages import MessagePages
from mqbridge.pulsar.server.web.namespaces import NamespacePages
from mqbridge.pulsar.server.web.schemas import SchemaPages
from mqbridge.pulsar.server.web.served import ServedTopics
from mqbridge.pulsar.server.web.stats import StatsPages
from mqbridge.pulsar.server.web.subscriptions import SubscriptionPages
from mqbridge.pulsar.server.web.topics import TopicPages

REQUEST_S = 30.0
"""Time for a request; the official admin client waits for 60 s or longer."""
METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH"]
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
PAGES = (HealthPages, LookupPages, TopicPages, SubscriptionPages, StatsPages, MessagePages, SchemaPages, NamespacePages)


def make_web_app(services: Services, broker: ServedTopics, advertised: Callable[[Request], str]) -> Starlette:
    """Make the web side of a listener.

    `broker` knows its clients, and `advertised` returns the address (`host:port`) that clients of the binary protocol are told.
    """
    context = WebContext(services, broker, advertised)
    routes = [route for pages in PAGES for route in pages(context).routes()]
    routes.append(Route("/{path:path}", _not_served, methods=METHODS))
    return Starlette(
        routes=routes,
        exception_handlers=ERROR_HANDLERS,
        middleware=[Middleware(RequestLimits)],
    )


async def _not_served(request: Request) -> Response:
    """Refuse what a broker may have, and a listener does not."""
    path = request.url.path
    if not path.startswith(("/admin/", "/lookup/")):
        return refusal(HTTPStatus.NOT_FOUND, "this address serves /admin/v2 and /lookup/v2")
    reason = f"{request.method} {path} {UNKNOWN_REQUEST}"
    return refusal(HTTPStatus.NOT_IMPLEMENTED, reason)


class RequestLimits:
    """Limits the time of each request, and refuses what no admin client sends.

    Such are paths in which a slash is encoded, which would be taken for another path, and changes that come from a page in a
    browser: any page may send them to an address of this machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        if b"%2f" in (scope.get("raw_path") or b"").lower():
            await refusal(HTTPStatus.BAD_REQUEST, "no name in a path contains a slash")(scope, receive, send)
            return
        if scope["method"] not in SAFE_METHODS and any(name == b"origin" for name, _ in scope["headers"]):
            await refusal(HTTPStatus.FORBIDDEN, "pages in a browser may change nothing")(scope, receive, send)
            return
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with asyncio.timeout(REQUEST_S):
                await self._app(scope, receive, send_noted)
        except TimeoutError:
            if has_begun:
                raise
            await refusal(HTTPStatus.SERVICE_UNAVAILABLE, NO_ANSWER_IN_TIME)(scope, receive, send)
