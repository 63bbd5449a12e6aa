"""Response codes by which clients are told why a request failed."""

from mqbridge.errors import ClusterError, Failure, MqbridgeError, NotPermitted, ProtocolError, RefusalReason, RequestRefused
from mqbridge.rocketmq.wire.codes import Status

MAX_TEXT_CHARS = 1000
"""Maximum length of the text of an error."""
_STATUS = {
    RefusalReason.TOPIC_MISSING: Status.TOPIC_NOT_EXIST,
    RefusalReason.GROUP_MISSING: Status.SUBSCRIPTION_GROUP_NOT_EXIST,
    RefusalReason.INVALID_NAME: Status.MESSAGE_ILLEGAL,
    RefusalReason.NOT_ALLOWED: Status.NO_PERMISSION,
    RefusalReason.BUSY: Status.SYSTEM_BUSY,
    RefusalReason.NOT_READY: Status.SYSTEM_BUSY,
}


class CodedRefusal(RequestRefused):
    """A request that is refused with a response code which only RocketMQ has."""

    def __init__(self, problem: str, code: int) -> None:
        super().__init__(problem, RefusalReason.NOT_ALLOWED)
        self.code = code


def status_of(error: Exception) -> int | None:
    """Return the response code of an error; None if it is a bug. After SYSTEM_BUSY, clients try again."""
    if isinstance(error, CodedRefusal):
        return error.code
    if isinstance(error, RequestRefused):
        return _STATUS.get(error.reason, Status.SYSTEM_ERROR)
    if isinstance(error, NotPermitted):
        return Status.NO_PERMISSION
    if isinstance(error, ProtocolError):
        return Status.SYSTEM_ERROR  # as brokers answer a header that they cannot read
    if isinstance(error, ClusterError):
        return Status.SYSTEM_ERROR if error.failure is Failure.FATAL else Status.SYSTEM_BUSY
    if isinstance(error, MqbridgeError | TimeoutError):
        return Status.SYSTEM_BUSY
    return None


def text_of(error: Exception) -> str:
    """Return the text of an error for the client; never empty."""
    return (str(error) or repr(error))[:MAX_TEXT_CHARS]
