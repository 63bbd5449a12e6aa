"""Errors for missing permissions, which name the role, the action and the command that grants the permission."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from mqbridge.errors import Failure, NotPermitted, ServerRefused
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.names import parse_topic

PRODUCE, CONSUME = "produce", "consume"
EITHER = f"{PRODUCE},{CONSUME}"
"""Looking up a topic and listing a namespace need one of the two permissions; the remedy grants both."""
_NAME_NEEDS_ROLE_PREFIX = "prefixed by the authentication role"
"""Part of the broker's message if the namespace requires subscription names that begin with the role."""


class AccessDenied(NotPermitted):
    """The role has no permission for the operation."""


@contextmanager
def explain_denial(action: str, target: str, namespace: str, principal: str | None, permissions: str) -> Iterator[None]:
    """Turn a broker's AuthorizationError within this context into AccessDenied (FATAL), with the role and a remedy.

    All other errors pass unchanged, also an AccessDenied of an inner context.

    `action` and `target` are the verb and object of the request in the error text, such as "look up" and a topic. `principal` is
    the role, None if unknown. `permissions` are those to grant in `namespace`, as pulsar-admin expects them.
    """
    try:
        yield
    except ServerRefused as error:
        if error.code != codes.AUTHORIZATION or isinstance(error, AccessDenied):
            raise
        grant = f"pulsar-admin namespaces grant-permission {namespace} --role {principal or 'ROLE'} --actions {permissions}"
        remedy = f"grant it with `{grant}`"
        if _NAME_NEEDS_ROLE_PREFIX in str(error):
            remedy = "in this namespace the subscription's name must begin with the role (subscription-auth-mode Prefix)"
        raise AccessDenied(
            f"{principal_text(principal)} may not {action} {target} (AuthorizationError): {remedy}", error.code, Failure.FATAL
        ) from error


def explain_topic_denial(action: str, topic: str, principal: str | None, permissions: str) -> AbstractContextManager[None]:
    """Apply `explain_denial` to a request about a topic or a partition."""
    return explain_denial(action, topic, _namespace_of(topic), principal, permissions)


def explain_subscribe_denial(topic: str, subscription: str, principal: str | None) -> AbstractContextManager[None]:
    """Apply `explain_denial` to a SUBSCRIBE."""
    target = f"{topic} with subscription {subscription!r}"
    return explain_denial("consume from", target, _namespace_of(topic), principal, CONSUME)


def _namespace_of(topic: str) -> str:
    """Return the topic's namespace for an error message; a placeholder if the topic name is invalid."""
    try:
        name = parse_topic(topic)
    except ValueError:
        return "TENANT/NAMESPACE"
    return f"{name.tenant}/{name.namespace}"


def principal_text(principal: str | None) -> str:
    """Return the role for an error message, by name if it is known."""
    return f"role {principal!r}" if principal else "the role of these credentials"
