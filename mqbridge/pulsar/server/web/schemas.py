"""Schemas of topics."""

from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.pulsar.server.schema_compatibility import REFUSED_TYPES, TYPE_NAMES
from mqbridge.pulsar.server.web.answers import json_response
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.server.web.requests import MAX_INT64, find_target, json_body, number_in_path, topic_name
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema, version_number

SCHEMA_PATH = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
TYPES = {name: kind for kind, name in TYPE_NAMES.items() if kind not in REFUSED_TYPES}
"""The types that a topic can have, by the names in the admin interface."""
MAX_PROPERTIES = 1000


class SchemaPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route(f"{SCHEMA_PATH}/schema", self._latest, methods=["GET"]),
            Route(f"{SCHEMA_PATH}/schema/{{version}}", self._version, methods=["GET"]),
            Route(f"{SCHEMA_PATH}/schema", self._add, methods=["POST"]),
            Route(f"{SCHEMA_PATH}/schema", self._delete, methods=["DELETE"]),
        ]

    async def _latest(self, request: Request) -> Response:
        found = await self._context.served.schemas.latest(str(topic_name(request).parent))
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "Schema not found")
        return json_response(_content(found))

    async def _version(self, request: Request) -> Response:
        number = number_in_path(request, "version", lowest=-MAX_INT64 - 1)
        version = number.to_bytes(8, "big", signed=True)
        found = await self._context.served.schemas.version(str(topic_name(request).parent), version)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "Schema not found")
        return json_response(_content(found))

    async def _add(self, request: Request) -> Response:
        """Add a schema to a topic that exists, or may be created by a client."""
        schema = _parse(await json_body(request))
        name = topic_name(request)
        topics = self._context.services.topics
        if not topics.can_create or topics.backing_name(str(name.parent)) is None:
            await find_target(self._context, request)
        version = await self._context.served.schemas.register(str(name.parent), schema)
        return json_response({"version": {"version": version_number(version)}})

    async def _delete(self, request: Request) -> Response:
        self._context.check_manage("delete schemas")
        name = str(topic_name(request).parent)
        found = await self._context.served.schemas.latest(name)
        await self._context.served.schemas.delete(name)
        return json_response({"version": 0 if found is None else version_number(found.version)})


def _content(found: RegisteredSchema) -> dict[str, Any]:
    """Return a schema as brokers do."""
    schema = found.schema
    return {
        "version": version_number(found.version),
        "type": TYPE_NAMES.get(schema.type, "NONE"),
        "timestamp": found.registered_ms,
        "data": schema.definition.decode("utf-8", "replace"),
        "properties": dict(schema.properties),
    }


def _parse(body: Any) -> Schema:
    """Return the schema in a body. Raises HTTPException if it is invalid."""
    if not isinstance(body, dict) or body.get("type") not in TYPES:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"the type of a schema is one of {', '.join(sorted(TYPES))}")
    definition, properties = body.get("schema", ""), body.get("properties") or {}
    if not isinstance(definition, str) or not isinstance(properties, dict) or len(properties) > MAX_PROPERTIES:
        reason = f"`schema` must be text, and `properties` an object with at most {MAX_PROPERTIES} texts"
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, reason)
    return Schema(TYPES[body["type"]], definition.encode(), "", tuple((key, str(value)) for key, value in properties.items()))
