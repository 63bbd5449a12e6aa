"""Tenants, namespaces and clusters: those that the names of the listener's topics have."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.errors import RequestRefused
from mqbridge.listener.topics import ListenedTopics
from mqbridge.pulsar.server.web.answers import json_response
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.wire.names import PERSISTENT, parse_topic

EXAMPLE_TOPIC = "orders"
"""A topic of the cluster whose name shows the namespace of a template, whether the topic exists or not."""


async def namespaces_of(topics: ListenedTopics) -> list[str]:
    """Return the namespaces (`tenant/namespace`) of all topics, and that of a template which has only one; sorted."""
    try:
        names = await topics.names()
    except RequestRefused:  # this cluster does not list its topics
        names = []
    example = topics.client_name(EXAMPLE_TOPIC)
    found = {_namespace_of(name) for name in ([*names, example] if example is not None else names)}
    return sorted(found - {""})


def _namespace_of(name: str) -> str:
    """Return the namespace of a topic; an empty text if the name is not that of a persistent topic."""
    try:
        parsed = parse_topic(name)
    except ValueError:
        return ""
    return f"{parsed.tenant}/{parsed.namespace}" if parsed.domain == PERSISTENT else ""


async def check_namespace(context: WebContext, request: Request) -> str:
    """Return the namespace of a request. Raises HTTPException if it does not exist."""
    namespace = f"{request.path_params['tenant']}/{request.path_params['namespace']}"
    if namespace not in await namespaces_of(context.services.topics):
        raise HTTPException(HTTPStatus.NOT_FOUND, "Namespace does not exist")
    return namespace


class NamespacePages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        base = "/admin/v2"
        return [
            Route(f"{base}/tenants", self._tenants, methods=["GET"]),
            Route(f"{base}/tenants/{{tenant}}", self._tenant, methods=["GET"]),
            Route(f"{base}/namespaces/{{tenant}}", self._namespaces, methods=["GET"]),
            Route(f"{base}/namespaces/{{tenant}}/{{namespace}}", self._namespace, methods=["GET"]),
            Route(f"{base}/clusters", self._clusters, methods=["GET"]),
            Route(f"{base}/clusters/{{cluster}}", self._cluster, methods=["GET"]),
        ]

    async def _all(self) -> list[str]:
        return await namespaces_of(self._context.services.topics)

    async def _tenants(self, _: Request) -> Response:
        return json_response(sorted({namespace.partition("/")[0] for namespace in await self._all()}))

    async def _tenant(self, request: Request) -> Response:
        await self._namespaces_of_tenant(request, "Tenant does not exist")
        return json_response({"adminRoles": [], "allowedClusters": [self._context.services.cluster]})

    async def _namespaces(self, request: Request) -> Response:
        return json_response(await self._namespaces_of_tenant(request, "Tenant not found"))

    async def _namespaces_of_tenant(self, request: Request, problem: str) -> list[str]:
        """Return the namespaces of the request's tenant. Raises HTTPException with the problem if there are none."""
        found = [namespace for namespace in await self._all() if namespace.startswith(f"{request.path_params['tenant']}/")]
        if not found:
            raise HTTPException(HTTPStatus.NOT_FOUND, problem)
        return found

    async def _namespace(self, request: Request) -> Response:
        """Return the policies: nothing is set, because the cluster's own settings apply."""
        await check_namespace(self._context, request)
        policies = {
            "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
            "replication_clusters": [self._context.services.cluster],
            "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
            "deleted": False,
        }
        return json_response(policies)

    async def _clusters(self, _: Request) -> Response:
        return json_response([self._context.services.cluster])

    async def _cluster(self, request: Request) -> Response:
        context = self._context
        if request.path_params["cluster"] != context.services.cluster:
            raise HTTPException(HTTPStatus.NOT_FOUND, "Cluster does not exist")
        return json_response({"serviceUrl": context.web_url(request), "brokerServiceUrl": context.service_url(request)})
