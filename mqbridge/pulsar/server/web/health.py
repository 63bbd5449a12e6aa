"""Brokers and their health: this listener is the only broker of its cluster."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mqbridge import __version__
from mqbridge.pulsar.server.web.answers import json_response
from mqbridge.pulsar.server.web.context import WebContext

PROBED_TOPIC = "mqbridgehealth"
"""A topic of which the cluster is asked whether it exists: it answers, or it fails."""


class HealthPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        base = "/admin/v2/brokers"
        return [
            Route(f"{base}/health", self._health, methods=["GET"]),
            Route(f"{base}/ready", self._health, methods=["GET"]),
            Route(f"{base}/version", self._version, methods=["GET"]),
            Route(f"{base}/leaderBroker", self._leader, methods=["GET"]),
            Route(base, self._brokers, methods=["GET"]),
            Route(f"{base}/{{cluster}}", self._brokers, methods=["GET"]),
        ]

    async def _health(self, _: Request) -> Response:
        """Return `ok` if the cluster behind the listener answers. Raises ClusterError otherwise."""
        topics = self._context.services.topics
        name = topics.client_name(PROBED_TOPIC)
        if name is not None:
            await topics.find(name, fresh=True)
        return PlainTextResponse("ok")

    async def _version(self, _: Request) -> Response:
        return PlainTextResponse(f"mqbridge-{__version__}")

    async def _brokers(self, request: Request) -> Response:
        return json_response([request.url.netloc])

    async def _leader(self, request: Request) -> Response:
        return json_response({"serviceUrl": self._context.web_url(request), "brokerId": request.url.netloc})
