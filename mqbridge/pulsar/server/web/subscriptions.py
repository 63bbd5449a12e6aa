"""Subscriptions: lists, creation, deletion, and moving them."""

import time
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.adapter.inbound import Start
from mqbridge.message import Position
from mqbridge.pulsar.server.web.answers import json_response, no_content
from mqbridge.pulsar.server.web.context import WebContext, for_each
from mqbridge.pulsar.server.web.positions import RequestedId, position_after, position_of_id
from mqbridge.pulsar.server.web.requests import (
    MAX_INT64,
    SUBSCRIPTION_PATH,
    TOPIC_PATH,
    RequestedTopic,
    find_target,
    flag,
    json_body,
    number_in_path,
    subscription_missing,
    subscription_name,
    topic_name,
)

MAX_AGE_S = 100 * 365 * 86400
"""Maximum age for `expireMessages`."""


class SubscriptionPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        every = f"{TOPIC_PATH}/all_subscription/expireMessages/{{seconds}}"
        return [
            Route(f"{TOPIC_PATH}/subscriptions", self._list, methods=["GET"]),
            Route(SUBSCRIPTION_PATH, self._create, methods=["PUT"]),
            Route(SUBSCRIPTION_PATH, self._delete, methods=["DELETE"]),
            Route(f"{SUBSCRIPTION_PATH}/resetcursor", self._reset_to_id, methods=["POST"]),
            Route(f"{SUBSCRIPTION_PATH}/resetcursor/{{timestamp}}", self._reset_to_time, methods=["POST"]),
            Route(f"{SUBSCRIPTION_PATH}/skip/{{count}}", self._skip, methods=["POST"]),
            Route(f"{SUBSCRIPTION_PATH}/skip_all", self._skip_all, methods=["POST"]),
            Route(f"{SUBSCRIPTION_PATH}/expireMessages/{{seconds}}", self._expire, methods=["POST"]),
            Route(every, self._expire_all, methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        target = await find_target(self._context, request)
        return json_response(await self._context.services.groups.names(target.topic))

    # --- creation and deletion --------------------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Response:
        """Create a subscription in all partitions, at an end or at a message id; a missing topic is created, as at a broker."""
        context, topic = self._context, topic_name(request)
        name, wanted = subscription_name(request), RequestedId(await json_body(request))
        context.check_create("subscriptions")
        if topic.partition_index < 0:
            await context.services.topics.find_or_create(str(topic))
        target = await find_target(context, request)
        _refuse_partition(target, "created")
        groups = context.services.groups
        if await groups.exists(target.topic, name):
            raise HTTPException(HTTPStatus.CONFLICT, "Subscription already exists for topic")
        if wanted.is_earliest or wanted.is_latest:
            await groups.create(target.topic, name, Start.EARLIEST if wanted.is_earliest else Start.LATEST)
            return no_content()
        if target.is_whole:
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, "a message id is in one partition, and the topic has several")
        position = await position_of_id(context, target.topic, 0, wanted)
        await groups.create(target.topic, name, Start.EARLIEST)
        await groups.move(target.topic, name, {0: position})
        return no_content()

    async def _delete(self, request: Request) -> Response:
        """Delete a subscription. Refused while it has consumers, unless `force` is set: then they go."""
        context = self._context
        context.check_manage("delete subscriptions")
        target, name = await self._find(request)
        _refuse_partition(target, "deleted")
        if flag(request, "force"):
            await self._disconnect(target, name)
        elif any(self._has_consumers(target, partition, name) for partition in target.partitions):
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, "Subscription has active connected consumers")
        await context.services.parking.delete_group(target.topic, name)
        return no_content()

    # --- moving ---------------------------------------------------------------------------------------------------------

    async def _reset_to_time(self, request: Request) -> Response:
        """Move a subscription to the first message that was stored at this time or later."""
        time_ms = max(0, number_in_path(request, "timestamp", lowest=-MAX_INT64))
        self._context.check_manage("reset subscriptions")
        target, name = await self._find(request)
        partitions = self._context.services.partitions

        async def position_at(partition: int) -> Position:
            return await partitions.position_at(target.topic, partition, time_ms)

        await self._move_to(target, name, await for_each(target.partitions, position_at))
        return no_content()

    async def _reset_to_id(self, request: Request) -> Response:
        """Move a subscription to a message, or behind it if `excluded` is set."""
        wanted = RequestedId(await json_body(request))
        self._context.check_manage("reset subscriptions")
        target, name = await self._find(request)
        if target.is_whole and not (wanted.is_earliest or wanted.is_latest):
            reason = "Reset-cursor at position is not allowed for partitioned-topic: name the partition"
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, reason)

        async def position_in(partition: int) -> Position:
            return await position_of_id(self._context, target.topic, partition, wanted)

        await self._move_to(target, name, await for_each(target.partitions, position_in))
        return no_content()

    async def _skip(self, request: Request) -> Response:
        """Acknowledge a number of messages for a subscription, from its position on. What is parked is not among them."""
        count = number_in_path(request, "count")
        self._context.check_manage("skip messages")
        target, name = await self._find(request)
        if target.is_whole:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, "Skip messages on a partitioned topic is not allowed")
        services, partition = self._context.services, target.partitions[0]
        if not services.numbering.dense:
            reason = "messages of this cluster cannot be counted: reset the subscription to a message id or a time instead"
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, reason)
        committed = await self._committed(target, name)
        if partition in committed:
            bounds = await services.partitions.bounds(target.topic, partition)
            await services.groups.advance(target.topic, name, {partition: position_after(bounds, committed[partition], count)})
        return no_content()

    async def _skip_all(self, request: Request) -> Response:
        self._context.check_manage("skip messages")
        target, name = await self._find(request)
        partitions = self._context.services.partitions

        async def end_of(partition: int) -> Position:
            return (await partitions.bounds(target.topic, partition)).next

        await self._move_to(target, name, await for_each(target.partitions, end_of))
        return no_content()

    async def _expire(self, request: Request) -> Response:
        """Acknowledge the messages that were stored more than some seconds ago. What is parked is not among them."""
        seconds = number_in_path(request, "seconds", highest=MAX_AGE_S)
        self._context.check_manage("expire messages")
        target, name = await self._find(request)
        if not await self._expire_in(target, name, seconds):
            reason = f"Subscription {name} of topic {target.name} has no messages older than {seconds} s"
            raise HTTPException(HTTPStatus.CONFLICT, reason)
        return no_content()

    async def _expire_all(self, request: Request) -> Response:
        seconds = number_in_path(request, "seconds", highest=MAX_AGE_S)
        self._context.check_manage("expire messages")
        target = await find_target(self._context, request)
        for name in await self._context.services.groups.names(target.topic):
            await self._expire_in(target, name, seconds)
        return no_content()

    async def _expire_in(self, target: RequestedTopic, name: str, seconds: int) -> bool:
        """Expire the messages of one subscription; return False if there are none."""
        time_ms = max(0, round((time.time() - seconds) * 1000))
        partitions, committed = self._context.services.partitions, await self._committed(target, name)

        async def position_at(partition: int) -> Position:
            return await partitions.position_at(target.topic, partition, time_ms)

        begins = dict(zip(committed, await for_each(committed, position_at), strict=True))
        moved = {index: begin for index, begin in begins.items() if begin > committed[index]}
        if moved:
            await self._context.services.groups.advance(target.topic, name, moved)
        return bool(moved)

    # --- what they share --------------------------------------------------------------------------------------------------

    async def _find(self, request: Request) -> tuple[RequestedTopic, str]:
        """Return the topic and the subscription of a request. Raises RequestRefused if one of them does not exist."""
        target, name = await find_target(self._context, request), subscription_name(request)
        if not await self._context.services.groups.exists(target.topic, name):
            raise subscription_missing(name, target)
        return target, name

    async def _committed(self, target: RequestedTopic, name: str) -> dict[int, Position]:
        committed = await self._context.services.groups.committed(target.topic, name)
        return {index: position for index, position in committed.items() if index in target.partitions}

    def _has_consumers(self, target: RequestedTopic, partition: int, name: str) -> bool:
        view = self._context.served.subscriptions(target.topic.backing, partition).get(name)
        return view is not None and bool(view.consumers)

    async def _move_to(self, target: RequestedTopic, name: str, positions: list[Position]) -> None:
        await self._move(target, name, dict(zip(target.partitions, positions, strict=True)))

    async def _move(self, target: RequestedTopic, name: str, positions: Mapping[int, Position]) -> None:
        """Move a subscription, and close its consumers there: they still have messages from before, and come back without."""
        services = self._context.services
        async with services.parking.moving(target.topic, name, positions):
            await services.groups.move(target.topic, name, positions)
        for partition in positions:
            if self._has_consumers(target, partition, name):
                await self._context.served.disconnect(target.topic.backing, partition, name)

    async def _disconnect(self, target: RequestedTopic, name: str) -> None:
        for partition in target.partitions:
            await self._context.served.disconnect(target.topic.backing, partition, name)


def _refuse_partition(target: RequestedTopic, action: str) -> None:
    """Raise HTTPException for a single partition: a subscription is in all of them."""
    if target.names_partition:
        reason = f"subscriptions are {action} in all partitions: name the topic {target.topic.name}"
        raise HTTPException(HTTPStatus.PRECONDITION_FAILED, reason)
