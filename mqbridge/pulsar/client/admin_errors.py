"""Errors for HTTP 401 and 403 of the admin interface: refused credentials, or a missing permission.

For refused credentials Pulsar's web server returns 401 with an HTML page. For a missing permission it returns 401 or 403 with
JSON whose `reason` names the operation. The permission that each operation needs was measured with Pulsar 4.0.8.
"""

import re

import httpx

from mqbridge.errors import Failure, ServerRefused
from mqbridge.pulsar.client.auth import Auth
from mqbridge.pulsar.client.authorization import CONSUME, EITHER, AccessDenied, principal_text

UNAUTHENTICATED, FORBIDDEN = 401, 403
_OPERATION = re.compile(r"operation \[(\w+)\]")
# Operations that the reason may name: allowed by the permission to produce or consume, or only by the permission to consume.
_NEEDS_EITHER = frozenset({"LOOKUP", "GET_STATS", "GET_METADATA", "GET_TOPIC", "GET_TOPICS"})
_NEEDS_CONSUME = frozenset(
    {"CONSUME", "SUBSCRIBE", "UNSUBSCRIBE", "SKIP", "RESET_CURSOR", "PEEK_MESSAGES", "EXPIRE_MESSAGES", "GET_SUBSCRIPTIONS"}
)


def are_credentials_refused(response: httpx.Response) -> bool:
    """Return True if the response refuses the credentials, False if it refuses the operation or nothing."""
    return response.status_code == UNAUTHENTICATED and not _is_json(response)


def refused_credentials(response: httpx.Response, call: str, origin: str, auth: Auth, failure: Failure) -> ServerRefused:
    """Return the error for refused credentials."""
    problem = f"{origin} refuses {auth.description}: {auth.remedy} ({call}: HTTP {response.status_code})"
    return ServerRefused(problem, response.status_code, failure)


def missing_permission(response: httpx.Response, call: str, auth: Auth) -> AccessDenied | None:
    """Return the error for a missing permission; None for other responses."""
    if response.status_code not in (UNAUTHENTICATED, FORBIDDEN):
        return None
    reason = _reason(response)
    problem = f"{principal_text(auth.principal)} may not {call}: {_remedy(reason)} (HTTP {response.status_code}: {reason})"
    return AccessDenied(problem, response.status_code, Failure.FATAL)


def _remedy(reason: str) -> str:
    """Return which permission the operation needs."""
    found = _OPERATION.search(reason)
    operation = found[1] if found else ""
    if "superuser" in reason.lower():
        return "this needs a super user (superUserRoles of the brokers)"
    if operation in _NEEDS_CONSUME:
        return f"grant the role the permission to {CONSUME} in this namespace"
    if operation in _NEEDS_EITHER:
        return f"grant the role the permission to {EITHER.replace(',', ' or ')} in this namespace"
    return "this needs an administrator of the tenant (adminRoles)"


def _is_json(response: httpx.Response) -> bool:
    return "json" in response.headers.get("content-type", "")


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["reason"]).strip()[:300]
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
