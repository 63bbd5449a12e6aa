"""Access denials are parsed from the exact remarks of brokers 5.3.3 and 4.9.7; other errors with the same codes are not."""

import re
from typing import Any

import pytest

from mqbridge.rocketmq.wire import access_denials
from mqbridge.rocketmq.wire.access_denials import AccessDenial, DenialReason, ResourceType, parse_denial
from mqbridge.rocketmq.wire.codes import ACL_EXCEPTION

OLD = "org.apache.rocketmq.acl.common.AclException: {}, org.apache.rocketmq.acl.plain.PlainPermissionManager.{}"
VALIDATE, CHECK = "validate(PlainPermissionManager.java:655)", "checkPerm(PlainPermissionManager.java:605)"


@pytest.mark.parametrize(
    ("status", "remark", "refusal"),
    [
        (16, "check signature failed.", AccessDenial(DenialReason.WRONG_SECRET_KEY, 2)),
        (16, "User:nobody-here is not found.", AccessDenial(DenialReason.UNKNOWN_USER, 2)),
        (16, "User:application is disabled.", AccessDenial(DenialReason.DISABLED, 2)),
        (16, "username cannot be null.", AccessDenial(DenialReason.NO_CREDENTIALS, 2)),
        (
            16,
            "User:stranger has no permission to access Topic:orders from 127.0.0.1, no matched policies.",
            AccessDenial(DenialReason.MISSING_PERMISSION, 2, ResourceType.TOPIC, "orders", "127.0.0.1"),
        ),
        (
            16,
            "User:stranger has no permission to access Group:gg from 10.1.2.3, the decision is deny.",
            AccessDenial(DenialReason.MISSING_PERMISSION, 2, ResourceType.GROUP, "gg", "10.1.2.3"),
        ),
        (
            16,
            "User:stranger has no permission to access Cluster:DefaultCluster from 127.0.0.1, no matched policies.",
            AccessDenial(DenialReason.MISSING_PERMISSION, 2, ResourceType.CLUSTER, "DefaultCluster", "127.0.0.1"),
        ),
        (
            1,
            OLD.format("Check signature failed for accessKey=application", VALIDATE),
            AccessDenial(DenialReason.WRONG_SECRET_KEY, 1),
        ),
        (1, OLD.format("No acl config for nobody-here", VALIDATE), AccessDenial(DenialReason.UNKNOWN_USER, 1)),
        (1, OLD.format("No accessKey is configured", VALIDATE), AccessDenial(DenialReason.NO_CREDENTIALS, 1)),
        (
            1,
            OLD.format("No default permission for topic:orders", CHECK),
            AccessDenial(DenialReason.MISSING_PERMISSION, 1, ResourceType.TOPIC, "orders"),
        ),
        (
            1,
            OLD.format("No default permission for group:gg", CHECK),
            AccessDenial(DenialReason.MISSING_PERMISSION, 1, ResourceType.GROUP, "gg"),
        ),
        (
            1,
            OLD.format("Need admin permission for request code=17, but accessKey=stranger is not", CHECK),
            AccessDenial(DenialReason.MISSING_PERMISSION, 1),
        ),
    ],
)
def test_a_denial_is_parsed(status: int, remark: str, refusal: AccessDenial) -> None:
    assert parse_denial(status, remark) == refusal
    assert refusal.of_credentials is (refusal.reason is not DenialReason.MISSING_PERMISSION)


def test_names_with_words_of_the_remark_are_parsed() -> None:
    """The address comes last, and a user may have any name."""
    remark = "User:a:b not has no permission to access Topic:orders from here from 10.0.0.1, no matched policies."
    assert parse_denial(16, remark) == AccessDenial(
        DenialReason.MISSING_PERMISSION, 2, ResourceType.TOPIC, "orders from here", "10.0.0.1"
    )
    assert parse_denial(16, "User:User:x\ny is not found.") == AccessDenial(DenialReason.UNKNOWN_USER, 2)
    assert parse_denial(16, "Check signature failed.") == AccessDenial(DenialReason.WRONG_SECRET_KEY, 2)


@pytest.mark.parametrize(
    "start", ["User:", "User: not ", "has no permission to access Topic:", "No default permission for topic:"]
)
def test_the_work_for_a_long_remark_is_in_proportion_to_its_length(start: str) -> None:
    """A remark is searched by `str` methods alone, a constant number of times."""
    remark = SearchedText(start * 1000 + ACL_EXCEPTION)
    for status in (1, 16):
        parse_denial(status, remark)
    assert 0 < remark.searches <= 6
    assert not any(isinstance(value, re.Pattern) for value in vars(access_denials).values())


class SearchedText(str):  # noqa: SLOT000 - it counts
    """A text that counts the searches for other texts."""

    searches = 0

    def find(self, *arguments: Any) -> int:
        self.searches += 1
        return super().find(*arguments)

    def partition(self, separator: str) -> tuple[str, str, str]:
        self.searches += 1
        return super().partition(separator)


@pytest.mark.parametrize(
    ("status", "remark"),
    [
        (16, "the broker[127.0.0.1] sending message is forbidden"),
        (16, "the topic[T] sending message is forbidden"),
        (16, None),
        (1, "no consumer for this group, gg"),
        (1, OLD.format("something new", CHECK)),
        (1, ""),
        (29, "request queueId[99] is illegal, TopicConfig [topicName=check signature failed]"),
    ],
)
def test_other_errors_are_not_denials(status: int, remark: str | None) -> None:
    assert parse_denial(status, remark) is None
