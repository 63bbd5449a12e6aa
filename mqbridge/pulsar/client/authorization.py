"""Errors for missing permissions: the role, the action, and the command that grants it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from mqbridge.errors import Failure, ServerRefused
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.names import parse_topic

PRODUCE, CONSUME = "produce", "consume"
EITHER = f"{PRODUCE},{CONSUME}"
"""Either permission allows looking up a topic and listing a namespace."""
_PREFIXED = "prefixed by the authentication role"


class AccessDenied(ServerRefused):
    """A permission is missing."""


@contextmanager
def explain_denial(action: str, what: str, namespace: str, principal: str | None, actions: str) -> Iterator[None]:
    """Context of a request to do `action` on `what`: turns AuthorizationError into AccessDenied (FATAL) with role and remedy.

    `actions` are the permissions of which any is sufficient.
    """
    try:
        yield
    except ServerRefused as error:
        if error.code != codes.AUTHORIZATION or isinstance(error, AccessDenied):
            raise
        grant = f"pulsar-admin namespaces grant-permission {namespace} --role {principal or 'ROLE'} --actions {actions}"
        remedy = f"grant it with `{grant}`"
        if _PREFIXED in str(error):
            remedy = "in this namespace the subscription's name must begin with the role (subscription-auth-mode Prefix)"
        raise AccessDenied(
            f"{principal_text(principal)} may not {action} {what} (AuthorizationError): {remedy}", error.code, Failure.FATAL
        ) from error


def explain_topic_denial(action: str, topic: str, principal: str | None, actions: str) -> AbstractContextManager[None]:
    """Context of a request about a topic or a partition, see `explain_denial`."""
    return explain_denial(action, topic, _namespace_of(topic), principal, actions)


def explain_subscribe_denial(topic: str, subscription: str, principal: str | None) -> AbstractContextManager[None]:
    """Context of a SUBSCRIBE, see `explain_denial`."""
    what = f"{topic} with subscription {subscription!r}"
    return explain_denial("consume from", what, _namespace_of(topic), principal, CONSUME)


def _namespace_of(topic: str) -> str:
    """Return the namespace for display; a placeholder for an invalid topic name, which the broker refuses with its own reason."""
    try:
        name = parse_topic(topic)
    except ValueError:
        return "TENANT/NAMESPACE"
    return f"{name.tenant}/{name.namespace}"


def principal_text(principal: str | None) -> str:
    """Return the role's name, if known, for an error message."""
    return f"role {principal!r}" if principal else "the role of these credentials"
