"""Errors for HTTP 401 and 403 of the admin interface: refused credentials, or a missing permission.

For refused credentials Pulsar's web server returns 401 with an HTML page. For a missing permission it returns 401 or 403 with
JSON whose `reason` names the operation. The permission that each operation needs was measured with Pulsar 4.0.8.
"""

import re

import httpx

from mqbridge.errors import Failure, ServerRefused
from mqbridge.net.http_client import parse_json
from mqbridge.pulsar.client.connection.auth import Auth
from mqbridge.pulsar.client.connection.authorization import CONSUME, EITHER, AccessDenied, principal_text

UNAUTHENTICATED, FORBIDDEN = 401, 403
_OPERATION = re.compile(r"operation \[(\w+)\]")
# Operations that the broker's reason may name. The operations in _NEEDS_EITHER need the permission to produce or the permission
# to consume; those in _NEEDS_CONSUME need the permission to consume. All other operations need an administrator.
_NEEDS_EITHER = frozenset({"LOOKUP", "GET_STATS", "GET_METADATA", "GET_TOPIC", "GET_TOPICS"})
_NEEDS_CONSUME = frozenset(
    {"CONSUME", "SUBSCRIBE", "UNSUBSCRIBE", "SKIP", "RESET_CURSOR", "PEEK_MESSAGES", "EXPIRE_MESSAGES", "GET_SUBSCRIPTIONS"}
)


def are_credentials_refused(response: httpx.Response) -> bool:
    """Return True if the response refuses the credentials; False for a missing permission and for any other response."""
    return response.status_code == UNAUTHENTICATED and not _is_json(response)


def refused_credentials_error(response: httpx.Response, call: str, origin: str, auth: Auth, failure: Failure) -> ServerRefused:
    """Return the error for refused credentials; `failure` says whether a retry may succeed.

    `call` is the method and path; `origin` is the scheme, host and port that refused the credentials.
    """
    problem = f"{origin} refuses {auth.description}: {auth.remedy} ({call}: HTTP {response.status_code})"
    return ServerRefused(problem, response.status_code, failure)


def missing_permission_error(response: httpx.Response, call: str, auth: Auth) -> AccessDenied | None:
    """Return the error for a missing permission; None for any other response. `call` is the method and path.

    The caller has handled responses for which `are_credentials_refused` is True.
    """
    if response.status_code not in (UNAUTHENTICATED, FORBIDDEN):
        return None
    reason = _reason(response)
    problem = f"{principal_text(auth.principal)} may not {call}: {_remedy(reason)} (HTTP {response.status_code}: {reason})"
    return AccessDenied(problem, response.status_code, Failure.FATAL)


def _remedy(reason: str) -> str:
    """Return the remedy for the error text: the permission or role that the call needs. `reason` is the broker's text."""
    match = _OPERATION.search(reason)
    operation = match[1] if match else ""
    if "superuser" in reason.lower():
        return "this needs a super user (superUserRoles of the brokers)"
    if operation in _NEEDS_CONSUME:
        return f"grant the role the permission to {CONSUME} in this namespace"
    if operation in _NEEDS_EITHER:
        either = EITHER.replace(",", " or ")  # EITHER is a list of permissions, joined by commas
        return f"grant the role the permission to {either} in this namespace"
    return "this needs an administrator of the tenant (adminRoles)"


def _is_json(response: httpx.Response) -> bool:
    return "json" in response.headers.get("content-type", "")


def _reason(response: httpx.Response) -> str:
    """Return the `reason` in the response's JSON; if there is none, the whole text. At most 300 characters."""
    try:
        return str(parse_json(response)["reason"]).strip()[:300]
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
