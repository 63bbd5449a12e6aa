"""Reads requests: names in paths, numbers, and bodies, each with its limit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, unquote_plus

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.listener.topics import ListenedTopic
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.wire.names import DOMAINS, TopicName, parse_topic

MAX_BODY_BYTES = 64 << 10
"""Maximum size of the body of a request: that of a schema, which is the largest one."""
MAX_NAME_LENGTH = 4096
"""Maximum length of a name in a path."""
MAX_INT64 = (1 << 63) - 1


class _DomainConvertor(Convertor[str]):
    """The part of a path that is the domain of a topic: `{domain:domain}`."""

    regex = "|".join(DOMAINS)

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("domain", _DomainConvertor())
DOMAIN_PATH = "/admin/v2/{domain:domain}"
NAMESPACE_PATH = f"{DOMAIN_PATH}/{{tenant}}/{{namespace}}"
TOPIC_PATH = f"{NAMESPACE_PATH}/{{topic}}"
SUBSCRIPTION_PATH = f"{TOPIC_PATH}/subscription/{{subscription}}"


@dataclass(frozen=True, slots=True)
class RequestedTopic:
    """The topic of a request, or one partition of it.

    name        the name in the request
    topic       the topic
    partitions  the partitions that the request is about, by the index by which clients count them
    """

    name: TopicName
    topic: ListenedTopic
    partitions: Sequence[int]

    @property
    def names_partition(self) -> bool:
        """True if the request names one partition of a partitioned topic."""
        return self.topic.is_partitioned and self.name.partition_index >= 0

    @property
    def is_whole(self) -> bool:
        """True if the request is about a partitioned topic, and not about one of its partitions."""
        return self.topic.is_partitioned and not self.names_partition

    def partition_name(self, partition: int) -> str:
        """Return the full name of a partition; that of the topic if it is not partitioned."""
        return str(self.name.parent.partition(partition)) if self.topic.is_partitioned else self.topic.name


def topic_name(request: Request) -> TopicName:
    """Return the topic in a request's path. Raises RequestRefused for an invalid name."""
    parameters = request.path_params
    local = _topic_segment(request)
    text = f"{parameters.get('domain', 'persistent')}://{parameters['tenant']}/{parameters['namespace']}/{local}"
    if len(text) > MAX_NAME_LENGTH:
        raise RequestRefused(f"Topic name is not valid: more than {MAX_NAME_LENGTH} characters", RefusalReason.INVALID_NAME)
    try:
        name = parse_topic(text)
    except ValueError as error:
        raise RequestRefused(f"Topic name is not valid: {error}", RefusalReason.INVALID_NAME) from error
    if name.domain != "persistent":
        raise RequestRefused("non-persistent topics are not served here", RefusalReason.INVALID_NAME)
    return name


def _topic_segment(request: Request) -> str:
    """Return the last part of a topic's name. In it, `+` is a space, as brokers and the Java client have it."""
    found: str = request.path_params["topic"]
    raw: bytes = request.scope.get("raw_path") or b""
    for segment in raw.partition(b"?")[0].decode("ascii", "replace").split("/"):
        if "+" in segment and unquote(segment) == found:
            return unquote_plus(segment)
    return found


def subscription_name(request: Request) -> str:
    """Return the subscription in a request's path: brokers decode it twice, and admin clients encode it twice."""
    name = unquote_plus(request.path_params["subscription"])
    if not name or len(name) > MAX_NAME_LENGTH:
        raise RequestRefused(f"a subscription name has 1 to {MAX_NAME_LENGTH} characters", RefusalReason.INVALID_NAME)
    return name


async def find_target(context: WebContext, request: Request, *, fresh: bool = False) -> RequestedTopic:
    """Return the topic of a request. Raises RequestRefused if it does not exist, or has no such partition."""
    name = topic_name(request)
    topic = await context.services.topics.find(str(name.parent), fresh=fresh)
    if topic is None:
        raise topic_missing(name)
    if name.partition_index < 0:
        return RequestedTopic(name, topic, sorted(topic.partitions) if topic.is_partitioned else [0])
    if not topic.is_partitioned or name.partition_index >= topic.count:
        raise topic_missing(name)
    return RequestedTopic(name, topic, [name.partition_index])


async def find_partition(context: WebContext, request: Request) -> tuple[RequestedTopic, int]:
    """Return the partition of a request that names one, or a topic without partitions. Raises RequestRefused."""
    target = await find_target(context, request)
    if target.is_whole:
        raise topic_missing(target.name)
    return target, target.partitions[0]


def topic_missing(name: TopicName) -> RequestRefused:
    """Return the refusal of a request about a topic that does not exist."""
    return RequestRefused(f"Topic {name} not found", RefusalReason.TOPIC_MISSING)


def subscription_missing(name: str, target: RequestedTopic) -> RequestRefused:
    """Return the refusal of a request about a subscription that does not exist."""
    return RequestRefused(f"Subscription {name} not found for topic {target.name}", RefusalReason.GROUP_MISSING)


def number_in_path(request: Request, key: str, *, lowest: int = 0, highest: int = MAX_INT64) -> int:
    """Return a whole number in a request's path, between these limits."""
    return whole_number(request.path_params[key], key, lowest=lowest, highest=highest)


def whole_number(value: Any, key: str, *, lowest: int = 0, highest: int = MAX_INT64) -> int:
    """Return a value as a whole number between these limits; `key` names it in the refusal of any other value."""
    try:
        number = int(value) if not isinstance(value, bool | float) and len(str(value)) <= len(str(-MAX_INT64)) else None
    except (TypeError, ValueError):
        number = None
    if number is None or not lowest <= number <= highest:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{key} must be a whole number from {lowest} to {highest}")
    return number


def flag(request: Request, key: str) -> bool:
    """Return True if the query of a request has this key with the value true."""
    return request.query_params.get(key, "").lower() == "true"


async def json_body(request: Request) -> Any:
    """Return the body of a request; None if it is empty. Refused if it is too large, or is not JSON."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from error
