"""Error codes by which clients are told why a request failed."""

from mqbridge.errors import ClusterError, Failure, MqbridgeError, NotPermitted, RefusalReason, RequestRefused
from mqbridge.pulsar.wire import codes

MAX_TEXT_CHARS = 1000
"""Maximum length of the text of an error."""
_CODES = {
    RefusalReason.TOPIC_MISSING: codes.TOPIC_NOT_FOUND,
    RefusalReason.GROUP_MISSING: codes.SUBSCRIPTION_NOT_FOUND,
    RefusalReason.INVALID_NAME: codes.INVALID_TOPIC_NAME,
    RefusalReason.NOT_ALLOWED: codes.NOT_ALLOWED,
    RefusalReason.INCOMPATIBLE: codes.INCOMPATIBLE_SCHEMA,
    RefusalReason.NOT_READY: codes.SERVICE_NOT_READY,
}


class CodedRefusal(RequestRefused):
    """A request that is refused with an error code which only Pulsar has."""

    def __init__(self, problem: str, code: int, reason: RefusalReason = RefusalReason.NOT_ALLOWED) -> None:
        super().__init__(problem, reason)
        self.code = code


def code_of(error: Exception, busy: int) -> int | None:
    """Return the code of an error, `busy` for what another client has; None if it is a bug.

    After ServiceNotReady, clients look the topic up again and try again.
    """
    if isinstance(error, CodedRefusal):
        return error.code
    if isinstance(error, RequestRefused):
        return _CODES.get(error.reason, busy)
    if isinstance(error, NotPermitted):
        return codes.AUTHORIZATION
    if isinstance(error, ClusterError):
        return codes.METADATA if error.failure is Failure.FATAL else codes.SERVICE_NOT_READY
    if isinstance(error, MqbridgeError | TimeoutError):
        return codes.SERVICE_NOT_READY
    return None


def text_of(error: Exception) -> str:
    """Return the text of an error for the client; never empty."""
    return (str(error) or repr(error))[:MAX_TEXT_CHARS]
