"""What a refused right is called: who may not do what, and how it is granted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from mqbridge.errors import Failure, ServerRefused
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.names import parse_topic

PRODUCE, CONSUME = "produce", "consume"
EITHER = f"{PRODUCE},{CONSUME}"
"""Looking up a topic, and listing a namespace, is granted with either."""
_PREFIXED = "prefixed by the authentication role"


class Denied(ServerRefused):
    """A right is missing."""


@contextmanager
def needing(action: str, what: str, namespace: str, principal: str | None, actions: str) -> Iterator[None]:
    """Around a request that is called `action` on `what`: a refused right is told with who was refused, and what grants it.

    `actions` are the rights, any of which is enough. Raises Denied (FATAL).
    """
    try:
        yield
    except ServerRefused as error:
        if error.code != codes.AUTHORIZATION or isinstance(error, Denied):
            raise
        grant = f"pulsar-admin namespaces grant-permission {namespace} --role {principal or 'ROLE'} --actions {actions}"
        mended = f"grant it with `{grant}`"
        if _PREFIXED in str(error):
            mended = "in this namespace the subscription's name must begin with the role (subscription-auth-mode Prefix)"
        raise Denied(
            f"{who(principal)} may not {action} {what} (AuthorizationError): {mended}", error.code, Failure.FATAL
        ) from error


def on_topic(action: str, topic: str, principal: str | None, actions: str) -> AbstractContextManager[None]:
    """Around a request about a topic, or a partition."""
    return needing(action, topic, _namespace_of(topic), principal, actions)


def consuming(topic: str, subscription: str, principal: str | None) -> AbstractContextManager[None]:
    """Around a SUBSCRIBE."""
    what = f"{topic} with subscription {subscription!r}"
    return needing("consume from", what, _namespace_of(topic), principal, CONSUME)


def _namespace_of(topic: str) -> str:
    """For a command to show. What is no name of a topic is for the broker to refuse, with its own reason."""
    try:
        name = parse_topic(topic)
    except ValueError:
        return "TENANT/NAMESPACE"
    return f"{name.tenant}/{name.namespace}"


def who(principal: str | None) -> str:
    """Whose rights they are, where that is known."""
    return f"role {principal!r}" if principal else "the role of these credentials"
