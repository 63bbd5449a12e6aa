"""The error codes by which clients are told why a request failed."""

import pytest

from mqbridge.errors import (
    ClusterError,
    Failure,
    LocalProtocolError,
    MqbridgeError,
    NotPermitted,
    RefusalReason,
    RemoteProtocolError,
    RequestRefused,
)
from mqbridge.tubemq.server.refusals import MAX_TEXT_CHARS, CodedRefusal, code_of, text_of


@pytest.mark.parametrize(("error", "code"), [
    (CodedRefusal("no", 431), 431),
    (RequestRefused("no", RefusalReason.TOPIC_MISSING), 403),
    (RequestRefused("no", RefusalReason.GROUP_MISSING), 400),
    (RequestRefused("no", RefusalReason.INVALID_NAME), 400),
    (RequestRefused("no", RefusalReason.NOT_ALLOWED), 403),
    (RequestRefused("no", RefusalReason.BUSY), 500),
    (RequestRefused("no", RefusalReason.NOT_READY), 500),
    (NotPermitted("no", 450, Failure.FATAL), 450),
    (RemoteProtocolError("no"), 400),
    (LocalProtocolError("no"), 400),
    (ClusterError("no"), 500),
    (ClusterError("no", Failure.FATAL), 500),
    (ClusterError("no", Failure.REFUSED), 400),
    (MqbridgeError("no"), 500),
    (TimeoutError(), 500),
    (ZeroDivisionError("a bug"), None),
])  # fmt: skip
def test_every_error_has_a_code_unless_it_is_a_bug(error: Exception, code: int | None) -> None:
    assert code_of(error) == code


def test_no_reason_is_answered_as_unavailable() -> None:
    """Producers send nothing to a Broker for 50 s after that."""
    codes = {code_of(RequestRefused("no", reason)) for reason in RefusalReason}
    assert None not in codes
    assert 503 not in codes


def test_a_text_is_never_empty_and_not_too_long() -> None:
    assert text_of(TimeoutError()) == "TimeoutError()"
    assert text_of(ClusterError("down")) == "down"
    assert len(text_of(ClusterError("x" * 5000))) == MAX_TEXT_CHARS
