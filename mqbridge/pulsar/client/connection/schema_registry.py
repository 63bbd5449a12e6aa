"""Access to a cluster's schema registry over the binary protocol."""

from mqbridge.pulsar.client.connection.lookup import Lookup
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema, get_or_create_schema, get_schema


async def fetch(lookup: Lookup, topic: str, version: bytes | None, timeout: float) -> RegisteredSchema | None:
    """Return the schema of a topic in this version (None: the latest); None if the topic has no schema or does not exist.

    `timeout` limits the wait for the response, in seconds. Raises ClusterError.
    """
    connection = await lookup.service()
    response: pb.CommandGetSchemaResponse = await connection.request(
        lambda request_id: get_schema(request_id, topic, version),
        BaseCommand.GET_SCHEMA_RESPONSE,
        f"the schema of {topic}",
        timeout,
    )
    if response.HasField("error_code"):
        if response.error_code == codes.TOPIC_NOT_FOUND:  # also sent for a topic without a schema
            return None
        raise codes.refusal_error(response.error_code, response.error_message, f"asking for the schema of {topic}")
    return RegisteredSchema(Schema.from_wire(response.schema), response.schema_version)


async def register(lookup: Lookup, topic: str, schema: Schema, timeout: float) -> bytes:
    """Register a schema at the broker that owns the topic, unless it is registered; return its version.

    `timeout` limits the wait for the response, in seconds. Raises ClusterError.
    """
    owner = await lookup.owner(topic)
    response: pb.CommandGetOrCreateSchemaResponse = await owner.connection.request(
        lambda request_id: get_or_create_schema(request_id, topic, schema),
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        f"the registration of a schema for {topic}",
        timeout,
    )
    if response.HasField("error_code"):
        raise codes.refusal_error(response.error_code, response.error_message, f"registering a schema for {topic}")
    return response.schema_version
