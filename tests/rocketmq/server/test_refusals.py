"""Response codes of errors."""

import pytest

from mqbridge.errors import (
    ClusterError,
    ConfigError,
    ConnectionLost,
    Failure,
    LaneRevoked,
    LocalProtocolError,
    MqbridgeError,
    NotPermitted,
    RefusalReason,
    RemoteProtocolError,
    RequestRefused,
)
from mqbridge.rocketmq.server.refusals import MAX_TEXT_CHARS, CodedRefusal, status_of, text_of
from mqbridge.rocketmq.wire.codes import Status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CodedRefusal("x", Status.QUERY_NOT_FOUND), Status.QUERY_NOT_FOUND),
        (RequestRefused("x", RefusalReason.TOPIC_MISSING), Status.TOPIC_NOT_EXIST),
        (RequestRefused("x", RefusalReason.GROUP_MISSING), Status.SUBSCRIPTION_GROUP_NOT_EXIST),
        (RequestRefused("x", RefusalReason.INVALID_NAME), Status.MESSAGE_ILLEGAL),
        (RequestRefused("x", RefusalReason.NOT_ALLOWED), Status.NO_PERMISSION),
        (RequestRefused("x", RefusalReason.BUSY), Status.SYSTEM_BUSY),
        (RequestRefused("x", RefusalReason.NOT_READY), Status.SYSTEM_BUSY),
        (NotPermitted(16, "x", Failure.FATAL), Status.NO_PERMISSION),
        (LocalProtocolError("x"), Status.SYSTEM_ERROR),
        (RemoteProtocolError("x"), Status.SYSTEM_ERROR),
        (ClusterError("x"), Status.SYSTEM_BUSY),
        (ClusterError("x", Failure.REFUSED), Status.SYSTEM_BUSY),
        (ClusterError("x", Failure.FATAL), Status.SYSTEM_ERROR),
        (LaneRevoked("x"), Status.SYSTEM_BUSY),
        (ConnectionLost("x"), Status.SYSTEM_BUSY),
        (ConfigError("x"), Status.SYSTEM_BUSY),
        (TimeoutError(), Status.SYSTEM_BUSY),
        (ValueError("a bug"), None),
        (KeyError("a bug"), None),
    ],
    ids=repr,
)
def test_each_error_has_its_code(error: Exception, status: int | None) -> None:
    assert status_of(error) == status


def test_every_reason_of_a_refusal_has_a_code_of_its_own_choice() -> None:
    others = {reason for reason in RefusalReason if status_of(RequestRefused("x", reason)) == Status.SYSTEM_ERROR}
    assert not others & {RefusalReason.BUSY, RefusalReason.NOT_READY}, "clients try again only after busy"


def test_a_text_is_never_empty_and_never_long() -> None:
    assert text_of(MqbridgeError("why")) == "why"
    assert text_of(TimeoutError()) == "TimeoutError()"
    assert len(text_of(MqbridgeError("x" * 5000))) == MAX_TEXT_CHARS
