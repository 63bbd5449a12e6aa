"""The schema registry of a listener: which schemas a topic has, and which ones clients may add.

Clients get the answers of a broker with its default settings, which these questions to a broker 4.0 showed (see
`schema_compatibility` for what is compatible):

    PRODUCER, GET_OR_CREATE_SCHEMA   a schema that the topic has had at any time keeps its version; one that is new and compatible
                                     becomes the latest one; any other is refused with IncompatibleSchema
    PRODUCER without a schema        accepted, whatever schema the topic has
    GET_OR_CREATE_SCHEMA with NONE   the empty version: such messages have no schema
    SUBSCRIBE                        a topic without schema, messages, producers and consumers gets the consumer's schema; a topic
                                     with a schema keeps its own, which the consumer's must be able to read; a topic without
                                     schema that is in use refuses any schema
    SUBSCRIBE with AUTO_CONSUME      accepted
    GET_SCHEMA                       TopicNotFound for a topic without schema and for an unknown version; the name of a partition
                                     means its topic
    deleted schemas                  anything may be registered after them

What differs: versions are hashes and not numbers from 0, a schema that is registered again after a deletion gets the version that
it had, and a PRODUCER with the type NONE counts as one without schema, where a broker registers that type.

Two gateways may register schemas at the same time that are compatible with the latest one, but not with each other. Both are
published then. The gateway whose record comes later sees the other one when it reads its own, and takes its own back before it
answers.
"""

import asyncio

from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.listener.definitions import Definition, Definitions
from mqbridge.pulsar.server.schema_compatibility import InvalidSchema, are_equal, check_valid, incompatibility, version_of
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema, Types

NO_VERSION = b""
"""The version of messages without a schema."""


class Schemas:
    """The schemas of topics; a topic is named by its full name, without the number of a partition."""

    def __init__(self, definitions: Definitions) -> None:
        """`definitions` is started and closed with this object."""
        self._definitions = definitions
        self._registering: dict[str, asyncio.Lock] = {}
        """A lock for each topic for which a schema is being registered."""

    async def start(self) -> None:
        """Read all schemas. Raises ClusterError; the caller may call this again."""
        await self._definitions.start()

    async def close(self, deadline: float | None = None) -> None:
        """Stop following the schemas of other gateways, by the deadline (loop time)."""
        await self._definitions.close(deadline)

    async def latest(self, topic: str) -> RegisteredSchema | None:
        """Return the latest schema of a topic; None if it has none. Raises RequestRefused if that is not known now."""
        if not self._definitions.versions(topic):
            await self._definitions.catch_up()
        return _registered(self._latest(topic))

    async def versions(self, topic: str) -> list[RegisteredSchema]:
        """Return all schemas of a topic, the oldest first. Raises RequestRefused if they are not known now."""
        await self._definitions.catch_up()
        return [RegisteredSchema(_schema(each), each.version, each.registered_ms) for each in self._definitions.versions(topic)]

    async def version(self, topic: str, version: bytes) -> RegisteredSchema | None:
        """Return a version of a topic's schema; None if there is none. Raises RequestRefused if that is not known now."""
        found = self._definitions.find(topic, version)
        if found is None:
            await self._definitions.catch_up()
            found = self._definitions.find(topic, version)
        return _registered(found)

    async def find_version(self, topic: str, schema: Schema) -> bytes | None:
        """Return the version that a schema has in a topic; None if it has none. Raises RequestRefused."""
        await self._definitions.catch_up()
        found = self._find_equal(topic, _checked(schema))
        return None if found is None else found.version

    async def check_producer(self, topic: str, schema: Schema) -> None:
        """Raise RequestRefused (INCOMPATIBLE) if `register` would refuse the schema; nothing is registered."""
        await self._definitions.catch_up()
        if self._find_equal(topic, _checked(schema)) is None:
            _check(schema, self._latest(topic), both_ways=True)

    async def register(self, topic: str, schema: Schema) -> bytes:
        """Return the version of a producer's schema; register it if it is new. It is stored when this returns.

        Raises RequestRefused: INCOMPATIBLE if the schema is invalid or incompatible, NOT_ALLOWED beyond the limits, NOT_READY if
        the cluster cannot be asked or cannot store it now.
        """
        if schema.type == Types.NoSchema:
            return NO_VERSION
        _checked(schema)
        if (found := self._find_equal(topic, schema)) is not None:
            return found.version
        lock = self._registering.setdefault(topic, asyncio.Lock())
        try:
            async with lock:
                return await self._register(topic, schema)
        finally:
            if not lock.locked():
                self._registering.pop(topic, None)

    async def _register(self, topic: str, schema: Schema) -> bytes:
        await self._definitions.catch_up()
        if (found := self._find_equal(topic, schema)) is not None:
            return found.version
        _check(schema, self._latest(topic), both_ways=True)
        known = {each.version for each in self._definitions.versions(topic)}
        version = version_of(schema)
        added = await self._definitions.add(topic, version, schema.type, schema.definition, schema.properties)
        try:
            for other in self._definitions.read_before(topic, version):
                if other.version not in known:
                    _check(schema, other, both_ways=True)
        except RequestRefused:
            await self._definitions.delete(added.topic, added.version)
            raise
        return version

    async def check_consumer(self, topic: str, schema: Schema, *, in_use: bool = False) -> None:
        """Check the schema with which a consumer subscribes; register it if the topic has none.

        `in_use` is True if the topic has messages, producers or consumers already (other than those with AUTO_CONSUME): a schema
        is not registered then. Raises RequestRefused as `register` does.
        """
        if schema.type in {Types.AutoConsume, Types.NoSchema}:
            return
        _checked(schema)
        await self.latest(topic)
        if (latest := self._latest(topic)) is not None:
            _check(schema, latest, both_ways=False)
        elif in_use:
            raise RequestRefused("a schema cannot be added to a topic in use that has none", RefusalReason.INCOMPATIBLE)
        else:
            await self.register(topic, schema)

    async def delete(self, topic: str) -> None:
        """Delete all schemas of a topic; do nothing if it has none. Raises RequestRefused."""
        await self._definitions.delete(topic)

    def _latest(self, topic: str) -> Definition | None:
        return next(iter(reversed(self._definitions.versions(topic))), None)

    def _find_equal(self, topic: str, schema: Schema) -> Definition | None:
        """Return the version of a topic that a valid schema is, if it is known now."""
        found = self._definitions.find(topic, version_of(schema))
        if found is not None:
            return found
        return next((each for each in self._definitions.versions(topic) if are_equal(_schema(each), schema)), None)


def _checked(schema: Schema) -> Schema:
    """Return the schema. Raises RequestRefused if it is invalid."""
    try:
        check_valid(schema)
    except InvalidSchema as error:
        raise RequestRefused(f"invalid schema: {error}", RefusalReason.INCOMPATIBLE) from error
    return schema


def _check(schema: Schema, latest: Definition | None, *, both_ways: bool) -> None:
    """Raise RequestRefused if a valid schema is not compatible with a topic's latest one."""
    problem = None if latest is None else incompatibility(schema, _schema(latest), both_ways=both_ways)
    if problem is not None:
        raise RequestRefused(f"incompatible schema: {problem}", RefusalReason.INCOMPATIBLE)


def _schema(definition: Definition) -> Schema:
    """Return a stored schema, under the name that brokers give it: `tenant/namespace/topic`."""
    return Schema(definition.type, definition.data, definition.topic.partition("://")[2], definition.properties)


def _registered(definition: Definition | None) -> RegisteredSchema | None:
    if definition is None:
        return None
    return RegisteredSchema(_schema(definition), definition.version, definition.registered_ms)
