"""Meaning of HTTP 401 and 403 of the admin interface: refused credentials, or a missing permission.

Pulsar refuses credentials with an HTML page of its web server, and a missing permission, as 401 or 403, in JSON with a `reason`
that names the operation. The permissions that operations need were measured with 4.0.8.
"""

import re

import httpx

from mqbridge.errors import Failure, ServerRefused
from mqbridge.pulsar.client.auth import Auth
from mqbridge.pulsar.client.authorization import CONSUME, EITHER, AccessDenied, principal_text

UNAUTHENTICATED, FORBIDDEN = 401, 403
_OPERATION = re.compile(r"operation \[(\w+)\]")
_LOOKED_UP = frozenset({"LOOKUP", "GET_STATS", "GET_METADATA", "GET_TOPIC", "GET_TOPICS"})
_CONSUMED = frozenset(
    {"CONSUME", "SUBSCRIBE", "UNSUBSCRIBE", "SKIP", "RESET_CURSOR", "PEEK_MESSAGES", "EXPIRE_MESSAGES", "GET_SUBSCRIPTIONS"}
)


def are_credentials_refused(answer: httpx.Response) -> bool:
    """Return True if the response refuses the credentials rather than the call."""
    return answer.status_code == UNAUTHENTICATED and not _is_json(answer)


def refused_credentials(answer: httpx.Response, call: str, origin: str, auth: Auth, failure: Failure) -> ServerRefused:
    """Return the error for refused credentials."""
    problem = f"{origin} refuses {auth.shown}: {auth.advice} ({call}: HTTP {answer.status_code})"
    return ServerRefused(problem, answer.status_code, failure)


def denied(answer: httpx.Response, call: str, auth: Auth) -> AccessDenied | None:
    """Return the error for a missing permission; None for other responses."""
    if answer.status_code not in (UNAUTHENTICATED, FORBIDDEN):
        return None
    reason = _reason(answer)
    problem = f"{principal_text(auth.principal)} may not {call}: {_needs(reason)} (HTTP {answer.status_code}: {reason})"
    return AccessDenied(problem, answer.status_code, Failure.FATAL)


def _needs(reason: str) -> str:
    found = _OPERATION.search(reason)
    operation = found[1] if found else ""
    if "superuser" in reason.lower():
        return "it needs a super user (superUserRoles of the brokers)"
    if operation in _CONSUMED:
        return f"grant it {CONSUME} there"
    if operation in _LOOKED_UP:
        return f"grant it {EITHER.replace(',', ' or ')} there"
    return "it needs an administrator of the tenant (adminRoles)"


def _is_json(answer: httpx.Response) -> bool:
    return "json" in answer.headers.get("content-type", "")


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["reason"]).strip()[:300]
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]
