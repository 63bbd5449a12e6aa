"""Shows stored messages: the last id, the id at a time, and the content of an entry."""

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.adapter.topics import Bounds
from mqbridge.listener.delivered import Delivered
from mqbridge.message import Message, Position
from mqbridge.pulsar.server.web.answers import iso_time, json_response
from mqbridge.pulsar.server.web.context import WebContext
from mqbridge.pulsar.server.web.requests import (
    SUBSCRIPTION_PATH,
    TOPIC_PATH,
    find_partition,
    number_in_path,
    subscription_missing,
    subscription_name,
    whole_number,
)
from mqbridge.pulsar.server.web.units import MAX_UNITS, read_units
from mqbridge.pulsar.wire.entry import Entry, decode_entry

MAX_HEADER_BYTES = 8 << 10
"""Maximum size of a header: clients refuse larger ones."""
NO_ENTRY = -1
"""Entry of the last id of an empty topic."""


class MessagePages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route(f"{TOPIC_PATH}/lastMessageId", self._last_id, methods=["GET"]),
            Route(f"{TOPIC_PATH}/messageid/{{timestamp}}", self._id_at, methods=["GET"]),
            Route(f"{TOPIC_PATH}/examinemessage", self._examine, methods=["GET"]),
            Route(f"{SUBSCRIPTION_PATH}/position/{{position}}", self._peek, methods=["GET"]),
        ]

    async def _last_id(self, request: Request) -> Response:
        """Return the id of the last entry."""
        context = self._context
        target, partition = await find_partition(context, request)
        bounds = await context.services.partitions.bounds(target.topic, partition)
        _check_last_known(bounds)
        ledger, entry = context.id_of(bounds.next)[0], NO_ENTRY
        if bounds.last is not None and (units := await read_units(context, target.topic, partition, bounds.last, 1)):
            ledger, entry = context.ids.entry_id(units[-1].number)
        return json_response(_id(ledger, entry, target.name.partition_index))

    async def _id_at(self, request: Request) -> Response:
        """Return the id of the first message that was stored at this time or later."""
        context = self._context
        time_ms = number_in_path(request, "timestamp")
        target, partition = await find_partition(context, request)
        position = await context.services.partitions.position_at(target.topic, partition, time_ms)
        ledger, entry = context.id_of(position)
        return json_response(_id(ledger, entry, target.name.partition_index))

    async def _peek(self, request: Request) -> Response:
        """Return the entry at this place, from 1 on, of those that the subscription has not acknowledged."""
        context = self._context
        position = number_in_path(request, "position", lowest=1, highest=MAX_UNITS)
        target, partition = await find_partition(context, request)
        name = subscription_name(request)
        committed = await context.services.groups.committed(target.topic, name)
        if partition not in committed:
            raise subscription_missing(name, target)
        bounds = await context.services.partitions.bounds(target.topic, partition)
        begin = max(bounds.first, committed[partition])
        units = await read_units(context, target.topic, partition, begin, position)
        if len(units) < position:
            raise HTTPException(HTTPStatus.NOT_FOUND, "Message not found")
        return self._show(units[-1])

    async def _examine(self, request: Request) -> Response:
        """Return the entry at this place from one of the ends; beyond the other end, the one there."""
        context, query = self._context, request.query_params
        wanted = whole_number(query.get("messagePosition", "1"), "messagePosition", lowest=1, highest=MAX_UNITS)
        target, partition = await find_partition(context, request)
        bounds = await context.services.partitions.bounds(target.topic, partition)
        begin: Position = bounds.first
        is_from_end = query.get("initialPosition", "latest") != "earliest"
        if is_from_end:
            _check_last_known(bounds)
            if wanted > 1:
                raise HTTPException(
                    HTTPStatus.PRECONDITION_FAILED, "only the last message can be examined from the end: use earliest"
                )
            begin = bounds.next if bounds.last is None else bounds.last
        units = await read_units(context, target.topic, partition, begin, wanted)
        if not units:
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, "Could not examine messages due to the total message is zero")
        return self._show(units[-1])

    def _show(self, delivered: Delivered) -> Response:
        """Return an entry as brokers do: its payload, still as a batch if it is one, and its metadata as headers."""
        ledger, entry = self._context.ids.entry_id(delivered.number)
        headers = {"X-Pulsar-Message-ID": f"{ledger}:{entry}"}
        if delivered.unit is None:
            assert delivered.message is not None  # noqa: S101 - a delivered unit has one of the two
            return _response(delivered.message.payload or b"", headers | _headers_of_message(delivered.message))
        decoded = decode_entry(delivered.unit.data)
        decoded.unpack()
        if not decoded.is_parsed:
            raise HTTPException(HTTPStatus.PRECONDITION_FAILED, f"the entry cannot be read: {decoded.defect}")
        return _response(decoded.payload, headers | _headers_of_entry(decoded))


def _check_last_known(bounds: Bounds) -> None:
    """Raise HTTPException if there are messages, and the cluster cannot tell the last one."""
    if bounds.last is None and bounds.first < bounds.next:
        raise HTTPException(HTTPStatus.PRECONDITION_FAILED, "the last message of this topic is not known in its cluster")


def _id(ledger: int, entry: int, partition: int) -> dict[str, int]:
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition, "batchIndex": -1, "batchSize": 0}


def _headers_of_entry(entry: Entry) -> dict[str, str]:
    metadata = entry.metadata
    headers = {
        # The type stubs resolve KeyValue to the value of that name in the enum of schema types.
        "X-Pulsar-PROPERTY": json.dumps({pair.key: pair.value for pair in metadata.properties}),
        "X-Pulsar-publish-time": iso_time(metadata.publish_time / 1000),
        "X-Pulsar-producer-name": metadata.producer_name,
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-Is-Encrypted": "true" if metadata.encryption_keys else "false",
    }
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    elif metadata.event_time:
        headers["X-Pulsar-event-time"] = iso_time(metadata.event_time / 1000)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = metadata.partition_key
    return headers


def _headers_of_message(message: Message) -> dict[str, str]:
    headers = {
        "X-Pulsar-PROPERTY": json.dumps(dict(message.properties)),
        # The Java client fails on messages without these two.
        "X-Pulsar-publish-time": iso_time((message.publish_time or 0) / 1000),
        "X-Pulsar-producer-name": "",
    }
    if message.event_time:
        headers["X-Pulsar-event-time"] = iso_time(message.event_time / 1000)
    if isinstance(message.key, str):
        headers["X-Pulsar-partition-key"] = message.key
    return headers


def _response(payload: bytes, headers: Mapping[str, str]) -> Response:
    """Return a payload with headers whose names keep their case: the Java client looks for properties by it.

    Values that no header can have are left out.
    """
    response = Response(payload, media_type="application/octet-stream")
    encoded = {name: _header_value(value) for name, value in headers.items() if value.isprintable()}
    response.raw_headers += [(name.encode(), value) for name, value in encoded.items() if len(value) <= MAX_HEADER_BYTES]
    return response


def _header_value(text: str) -> bytes:
    """Encode the value of a header in Latin-1, as brokers do, and in UTF-8 if it has other characters."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
