"""The application: the page of the Master, that of the Broker, and what holds for each request.

A real Master wants its `confModAuthToken` for changes. Here any value is accepted, or none: what clients may change is configured
(`manage`, `create`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mqbridge.errors import MqbridgeError
from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.consumers import Consumers
from mqbridge.tubemq.server.refusals import code_of, text_of
from mqbridge.tubemq.server.web.answers import Answer, failure, response_of
from mqbridge.tubemq.server.web.brokers import BrokerPages
from mqbridge.tubemq.server.web.context import WebContext
from mqbridge.tubemq.server.web.groups import GroupPages
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.offsets import OffsetPages
from mqbridge.tubemq.server.web.requests import read_parameters
from mqbridge.tubemq.server.web.snapshot import SnapshotPages
from mqbridge.tubemq.server.web.stores import StorePages
from mqbridge.tubemq.server.web.topics import TopicPages
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

REQUEST_S = 30.0
"""Time for a request."""
MASTER_PATH, BROKER_PATH = "/webapi.htm", "/broker.htm"
MASTER_PAGES = (BrokerPages, TopicPages, GroupPages)
BROKER_PAGES = (StorePages, OffsetPages, SnapshotPages)
OWN_SITES = {"none", "same-origin"}
"""Values of `Sec-Fetch-Site` that no page of another site can send."""

Refuse = Callable[[str], str]
"""Returns the text of the answer for a method that is not known; the name is empty if the request names none."""


def make_web_app(broker: ServedBroker, consumers: Consumers) -> Starlette:
    """Make the web side of a listener."""
    context = WebContext(broker, consumers)
    master = {name: method for pages in MASTER_PAGES for name, method in pages(context).methods().items()}
    of_broker = {name: method for pages in BROKER_PAGES for name, method in pages(context).methods().items()}
    return Starlette(
        routes=[
            Route(MASTER_PATH, _page(master, _unknown_to_master), methods=["GET", "POST"]),
            Route(BROKER_PATH, _page(of_broker, _unknown_to_broker), methods=["GET", "POST"]),
            Route("/{path:path}", _not_served, methods=["GET", "POST"]),
        ],
    )


def _unknown_to_master(name: str) -> str:
    """Return the text that a Master has for a method that it does not know, or for none."""
    problem = "unsupported method!" if name else "Please take with method parameter!"
    return f"Bad request from client, {problem}"


def _unknown_to_broker(name: str) -> str:
    """Return the text that a Broker has."""
    return f"Unsupported method {name}" if name else "Please take with method parameter! "


async def _not_served(_: Request) -> Response:
    return PlainTextResponse(f"this address serves {MASTER_PATH} and {BROKER_PATH}", 404)


def _page(methods: Mapping[str, WebMethod], unknown: Refuse) -> Callable[[Request], Awaitable[Response]]:
    """Return the page that serves methods."""

    async def serve(request: Request) -> Response:
        try:
            async with asyncio.timeout(REQUEST_S):
                return response_of(await _answer(request, methods, unknown))
        except TimeoutError:
            return response_of(failure(codes.INTERNAL_ERROR, "the cluster behind this listener has not answered in time"))

    return serve


async def _answer(request: Request, methods: Mapping[str, WebMethod], unknown: Refuse) -> Answer:
    try:
        parameters = await read_parameters(request)
        name = parameters.text("method")
        method = methods.get(name)
        if method is None:
            return failure(codes.BAD_REQUEST, unknown(name[:100]))
        if method.modifies and is_from_page(request):
            return failure(codes.BAD_REQUEST, "pages in a browser may change nothing")
        return await method.serve(parameters)
    except MqbridgeError as error:
        log.info("%s %s failed: %s", request.method, request.url.path, error)
        return failure(code_of(error) or codes.INTERNAL_ERROR, text_of(error))


def is_from_page(request: Request) -> bool:
    """Return True if a page in a browser has sent a request: any page may send one to an address of this machine."""
    headers = request.headers
    return "origin" in headers or "referer" in headers or headers.get("sec-fetch-site", "none") not in OWN_SITES
