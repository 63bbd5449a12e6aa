"""Error codes by which clients are told why a request failed."""

from mqbridge.errors import ClusterError, Failure, MqbridgeError, NotPermitted, ProtocolError, RefusalReason, RequestRefused
from mqbridge.tubemq.wire import codes

MAX_TEXT_CHARS = 1000
"""Maximum length of the text of an error."""
_CODES = {
    RefusalReason.TOPIC_MISSING: codes.FORBIDDEN,
    RefusalReason.GROUP_MISSING: codes.BAD_REQUEST,
    RefusalReason.INVALID_NAME: codes.BAD_REQUEST,
    RefusalReason.NOT_ALLOWED: codes.FORBIDDEN,
    RefusalReason.BUSY: codes.INTERNAL_ERROR,
    RefusalReason.NOT_READY: codes.INTERNAL_ERROR,
}


class CodedRefusal(RequestRefused):
    """A request that is refused with a code of the protocol."""

    def __init__(self, problem: str, code: int) -> None:
        super().__init__(problem, RefusalReason.NOT_ALLOWED)
        self.code = code


def code_of(error: Exception) -> int | None:
    """Return the error code of an error; None if it is a bug.

    Nothing is answered with 503: producers send nothing to a Broker for 50 s after it, and there is only this one.
    """
    if isinstance(error, CodedRefusal):
        return error.code
    if isinstance(error, RequestRefused):
        return _CODES.get(error.reason, codes.INTERNAL_ERROR)
    if isinstance(error, NotPermitted):
        return codes.GROUP_FORBIDDEN
    if isinstance(error, ProtocolError):
        return codes.BAD_REQUEST
    if isinstance(error, ClusterError):
        return codes.BAD_REQUEST if error.failure is Failure.REFUSED else codes.INTERNAL_ERROR
    if isinstance(error, MqbridgeError | TimeoutError):
        return codes.INTERNAL_ERROR
    return None


def text_of(error: Exception) -> str:
    """Return the text of an error for the client; never empty. Java clients cut texts of exceptions at the first `#`."""
    return (str(error) or repr(error))[:MAX_TEXT_CHARS]
