"""Lookup by HTTP, for clients whose service URL begins with http://."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.pulsar.server.web.answers import json_response
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.server.web.requests import topic_missing, topic_name


class LookupPages:
    """Tells clients where a topic is served: always here."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [Route("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", self._lookup)]

    async def _lookup(self, request: Request) -> Response:
        """Return the addresses. A topic that clients may create need not exist, as at a broker."""
        context, name = self._context, topic_name(request)
        topics = context.services.topics
        may_exist = topics.can_create and topics.backing_name(str(name.parent)) is not None
        if not may_exist and await topics.find(str(name.parent)) is None:
            raise topic_missing(name)
        url = context.service_url(request)
        return json_response({"brokerUrl": url, "httpUrl": context.web_url(request), "nativeUrl": url, "brokerUrlSsl": ""})
