"""Responses: every refusal and every failure of the cluster becomes a status with a JSON body `{"reason": ...}`."""

import json
import logging
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mqbridge.errors import ClusterError, ConfigError, Failure, LaneRevoked, NotPermitted, RefusalReason, RequestRefused

log = logging.getLogger(__name__)

STATUS_OF_REFUSAL = {
    RefusalReason.TOPIC_MISSING: HTTPStatus.NOT_FOUND,
    RefusalReason.GROUP_MISSING: HTTPStatus.NOT_FOUND,
    RefusalReason.INVALID_NAME: HTTPStatus.PRECONDITION_FAILED,
    RefusalReason.NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    RefusalReason.BUSY: HTTPStatus.PRECONDITION_FAILED,
    RefusalReason.NOT_READY: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The status that a real broker has for the same reason, where it has one."""
LAST_TIME_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""The last time that is formatted: producers may write any number."""
NO_ANSWER_IN_TIME = "the cluster behind this listener has not answered in time"


def json_response(content: Any) -> Response:
    """Return a value as JSON in ASCII."""
    return Response(json.dumps(content, separators=(",", ":")), media_type="application/json")


def no_content() -> Response:
    """Return the response of a request that was carried out."""
    return Response(status_code=HTTPStatus.NO_CONTENT)


def refusal(status: int, reason: str) -> Response:
    """Return a response with a reason, in the form in which admin clients look for it."""
    return Response(json.dumps({"reason": reason}), status_code=status, media_type="application/json")


def iso_time(seconds: float) -> str:
    """Format a time (s since the epoch) as brokers do: `2026-01-31T12:00:00.000Z`. Times after 9999 become that year."""
    return datetime.fromtimestamp(min(seconds, LAST_TIME_S), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_of(error: ClusterError) -> HTTPStatus:
    """Return the status of a failure of the cluster: 503 if a retry may help."""
    if isinstance(error, NotPermitted):
        return HTTPStatus.FORBIDDEN
    if error.failure in {Failure.RETRY, Failure.REFRESH}:
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.PRECONDITION_FAILED


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    return refusal(error.status_code, error.detail)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)  # noqa: S101 - registered for it
    return refusal(STATUS_OF_REFUSAL[error.reason], str(error))


async def _cluster_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClusterError)  # noqa: S101 - registered for it
    log.info("%s %s failed: %s", request.method, request.url.path, error)
    return refusal(status_of(error), str(error))


async def _invalid(_: Request, error: Exception) -> Response:
    return refusal(HTTPStatus.PRECONDITION_FAILED, str(error))


async def _too_late(_: Request, __: Exception) -> Response:
    return refusal(HTTPStatus.SERVICE_UNAVAILABLE, NO_ANSWER_IN_TIME)


async def _lost(_: Request, __: Exception) -> Response:
    return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "another gateway has the partition now")


ERROR_HANDLERS = {
    HTTPException: _http_error,
    RequestRefused: _refused,
    ClusterError: _cluster_failed,
    ConfigError: _invalid,
    LaneRevoked: _lost,
    TimeoutError: _too_late,
}
"""What becomes of the exceptions of a request; any other one is a bug, and becomes status 500."""
