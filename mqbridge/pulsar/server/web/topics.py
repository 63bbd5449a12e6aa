"""Topics: lists, partitions, creation, growth, deletion and unloading."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.topics import ListenedTopic
from mqbridge.pulsar.server.web.answers import json_response, no_content
from mqbridge.pulsar.server.web.context import WebContext, for_each
from mqbridge.pulsar.server.web.namespaces import check_namespace
from mqbridge.pulsar.server.web.requests import (
    MAX_INT64,
    NAMESPACE_PATH,
    TOPIC_PATH,
    RequestedTopic,
    find_target,
    flag,
    json_body,
    topic_missing,
    topic_name,
    whole_number,
)
from mqbridge.pulsar.wire.names import TopicName, parse_topic

MAX_LISTED = 10_000
"""Maximum number of topics in a list: each is asked for its partitions."""
MAX_PARTITIONS = 10_000
"""Maximum number of partitions that a client may ask for; the cluster may permit fewer."""
EXISTS = "This topic already exists"


class TopicPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._creating = KeyedLocks[str]()
        """Held while a topic is looked for and created, or grown, by its name."""

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route(NAMESPACE_PATH, self._list, methods=["GET"]),
            Route(f"{NAMESPACE_PATH}/partitioned", self._list_partitioned, methods=["GET"]),
            Route("/admin/v2/namespaces/{tenant}/{namespace}/topics", self._list, methods=["GET"]),
            Route(TOPIC_PATH, self._create, methods=["PUT"]),
            Route(TOPIC_PATH, self._delete, methods=["DELETE"]),
            Route(f"{TOPIC_PATH}/partitions", self._partitions, methods=["GET"]),
            Route(f"{TOPIC_PATH}/partitions", self._create_partitioned, methods=["PUT"]),
            Route(f"{TOPIC_PATH}/partitions", self._grow, methods=["POST"]),
            Route(f"{TOPIC_PATH}/partitions", self._delete_partitioned, methods=["DELETE"]),
            Route(f"{TOPIC_PATH}/unload", self._unload, methods=["PUT"]),
        ]

    # --- lists ----------------------------------------------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        """Return the names of topics, or of their partitions."""
        names: list[str] = []
        for topic in await self._topics(request):
            name = parse_topic(topic.name)
            partitions = sorted(topic.partitions)
            names += [str(name.partition(index)) for index in partitions] if topic.is_partitioned else [topic.name]
        return json_response(names)

    async def _list_partitioned(self, request: Request) -> Response:
        return json_response([topic.name for topic in await self._topics(request) if topic.is_partitioned])

    async def _topics(self, request: Request) -> list[ListenedTopic]:
        """Return the topics of the namespace; there are none that are not persistent."""
        namespace = await check_namespace(self._context, request)
        if request.path_params.get("domain", "persistent") != "persistent":
            return []
        if request.query_params.get("mode", "").upper() == "NON_PERSISTENT":
            return []
        topics = self._context.services.topics
        names = [name for name in await topics.names() if name.startswith(f"persistent://{namespace}/")]
        if len(names) > MAX_LISTED:
            reason = f"namespace {namespace} has {len(names)} topics: at most {MAX_LISTED} are listed"
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, reason)
        found = await for_each(names, topics.find)
        return [topic for topic in found if topic is not None]

    # --- partitions -----------------------------------------------------------------------------------------------------

    async def _partitions(self, request: Request) -> Response:
        """Return the number of partitions: 0 for a topic that is not partitioned, and for a partition."""
        name, topics = topic_name(request), self._context.services.topics
        if flag(request, "checkAllowAutoCreation") and topics.can_create and name.partition_index < 0:
            await topics.find_or_create(str(name))
        target = await find_target(self._context, request)
        return json_response(partitions_of(target))

    async def _create(self, request: Request) -> Response:
        """Create a topic without partitions."""
        name = topic_name(request)
        self._context.check_create("topics")
        async with self._creating.hold(str(name.parent)):
            await self._create_plain(name)
        return no_content()

    async def _create_plain(self, name: TopicName) -> None:
        existing = await self._context.services.topics.find(str(name.parent), fresh=True)
        has_partition = existing is not None and existing.is_partitioned and name.partition_index < existing.count
        if name.partition_index >= 0 and not has_partition:
            reason = f"the name {name.local} is that of a partition, and there is no such partition"
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, reason)
        if existing is not None:
            raise HTTPException(HTTPStatus.CONFLICT, EXISTS)
        await self._context.services.topics.create(str(name), 1, is_partitioned=False)

    async def _create_partitioned(self, request: Request) -> Response:
        name = topic_name(request)
        self._context.check_create("topics")
        count = await _partition_count(request)
        if name.partition_index >= 0:
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, f"the name {name.local} is that of a partition")
        topics = self._context.services.topics
        async with self._creating.hold(str(name)):
            if await topics.find(str(name), fresh=True) is not None:
                raise HTTPException(HTTPStatus.CONFLICT, EXISTS)
            await topics.create(str(name), count, is_partitioned=True)
        return no_content()

    async def _grow(self, request: Request) -> Response:
        """Add partitions until the topic has as many as the body says."""
        name = topic_name(request)
        self._context.check_manage("add partitions")
        count = await _partition_count(request)
        async with self._creating.hold(str(name)):
            await self._grow_to(name, count)
        return no_content()

    async def _grow_to(self, name: TopicName, count: int) -> None:
        topics = self._context.services.topics
        topic = await topics.find(str(name), fresh=True)
        if topic is None or not topic.is_partitioned:
            raise HTTPException(HTTPStatus.CONFLICT, f"Topic {name} is not the partitioned topic.")
        if count < topic.count:
            reason = f"Desired partitions {count} can't be less than the current partitions {topic.count}."
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, reason)
        if count > topic.count:
            await topics.create(str(name), count, is_partitioned=True)

    # --- deletion -------------------------------------------------------------------------------------------------------

    async def _delete(self, request: Request) -> Response:
        """Delete a topic without partitions."""
        self._context.check_manage("delete topics")
        target = await find_target(self._context, request, fresh=True)
        if target.names_partition:
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, "a single partition cannot be deleted here")
        if target.is_whole:
            reason = f"{target.name} is a partitioned topic: delete it at /partitions (delete-partitioned-topic)"
            raise HTTPException(HTTPStatus.CONFLICT, reason)
        await self._delete_target(request, target)
        return no_content()

    async def _delete_partitioned(self, request: Request) -> Response:
        self._context.check_manage("delete topics")
        target = await find_target(self._context, request, fresh=True)
        if target.names_partition:
            raise topic_missing(target.name)
        if not target.is_whole:
            reason = f"{target.name} is a topic without partitions: delete it without /partitions (delete)"
            raise HTTPException(HTTPStatus.CONFLICT, reason)
        await self._delete_target(request, target)
        return no_content()

    async def _delete_target(self, request: Request, target: RequestedTopic) -> None:
        """Delete a topic, with its groups and schemas. Refused while it has clients, unless `force` is set: then they go."""
        context, topic = self._context, target.topic
        users = sum(self._users(topic, partition) for partition in target.partitions)
        if users and not flag(request, "force"):
            reason = f"Topic has {users} connected producers/consumers"
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, reason)
        services = context.services
        if not services.topics.can_delete:
            raise HTTPException(HTTPStatus.FORBIDDEN, "topics cannot be deleted in this cluster")
        await context.served.close_topic(topic.backing)
        async with services.parking.deleting(topic):
            services.publishers.forget(topic)
            await services.topics.delete(topic.name)
        await context.served.schemas.delete(topic.name)

    def _users(self, topic: ListenedTopic, partition: int) -> int:
        served = self._context.served
        consumers = sum(len(view.consumers) for view in served.subscriptions(topic.backing, partition).values())
        return consumers + len(served.producers(topic.backing, partition))

    async def _unload(self, request: Request) -> Response:
        """Close the topic's producers and consumers; SDKs come back by themselves."""
        self._context.check_manage("unload topics")
        target = await find_target(self._context, request)
        await self._context.served.close_topic(target.topic.backing)
        return no_content()


def partitions_of(target: RequestedTopic) -> dict[str, object]:
    """Return the metadata of a partitioned topic, as brokers have it."""
    return {"partitions": target.topic.count if target.is_whole else 0, "deleted": False}


async def _partition_count(request: Request) -> int:
    """Return the number of partitions in a body: a number, or an object that has it."""
    body = await json_body(request)
    count = whole_number(
        body.get("partitions") if isinstance(body, dict) else body, "the number of partitions", lowest=-MAX_INT64
    )
    if not 1 <= count <= MAX_PARTITIONS:
        reason = f"Number of partitions should be more than 0, and not more than {MAX_PARTITIONS}"
        raise HTTPException(HTTPStatus.NOT_ACCEPTABLE, reason)
    return count
