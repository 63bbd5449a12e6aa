"""Access denials are parsed from the exact remarks of brokers 5.3.3 and 4.9.7; other errors with the same codes are not."""

import pytest

from mqbridge.rocketmq.wire.access_denials import AccessDenial, DenialReason, ResourceType, parse_denial

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
