"""How real brokers refuse, word for word as 5.3.3 and 4.9.7 do, and what else they say with the same codes."""

import pytest

from mqbridge.rocketmq.wire.refusals import Kind, Lack, Refusal, read_refusal

OLD = "org.apache.rocketmq.acl.common.AclException: {}, org.apache.rocketmq.acl.plain.PlainPermissionManager.{}"
VALIDATE, CHECK = "validate(PlainPermissionManager.java:655)", "checkPerm(PlainPermissionManager.java:605)"


@pytest.mark.parametrize(
    ("status", "remark", "refusal"),
    [
        (16, "check signature failed.", Refusal(Lack.SIGNATURE, 2)),
        (16, "User:nobody-here is not found.", Refusal(Lack.USER, 2)),
        (16, "User:application is disabled.", Refusal(Lack.ENABLED, 2)),
        (16, "username cannot be null.", Refusal(Lack.CREDENTIALS, 2)),
        (
            16,
            "User:stranger has no permission to access Topic:orders from 127.0.0.1, no matched policies.",
            Refusal(Lack.RIGHT, 2, Kind.TOPIC, "orders", "127.0.0.1"),
        ),
        (
            16,
            "User:stranger has no permission to access Group:gg from 10.1.2.3, the decision is deny.",
            Refusal(Lack.RIGHT, 2, Kind.GROUP, "gg", "10.1.2.3"),
        ),
        (
            16,
            "User:stranger has no permission to access Cluster:DefaultCluster from 127.0.0.1, no matched policies.",
            Refusal(Lack.RIGHT, 2, Kind.CLUSTER, "DefaultCluster", "127.0.0.1"),
        ),
        (1, OLD.format("Check signature failed for accessKey=application", VALIDATE), Refusal(Lack.SIGNATURE, 1)),
        (1, OLD.format("No acl config for nobody-here", VALIDATE), Refusal(Lack.USER, 1)),
        (1, OLD.format("No accessKey is configured", VALIDATE), Refusal(Lack.CREDENTIALS, 1)),
        (1, OLD.format("No default permission for topic:orders", CHECK), Refusal(Lack.RIGHT, 1, Kind.TOPIC, "orders")),
        (1, OLD.format("No default permission for group:gg", CHECK), Refusal(Lack.RIGHT, 1, Kind.GROUP, "gg")),
        (
            1,
            OLD.format("Need admin permission for request code=17, but accessKey=stranger is not", CHECK),
            Refusal(Lack.RIGHT, 1),
        ),
    ],
)
def test_what_is_lacking(status: int, remark: str, refusal: Refusal) -> None:
    assert read_refusal(status, remark) == refusal
    assert refusal.of_credentials is (refusal.lack is not Lack.RIGHT)


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
def test_what_is_no_refusal_of_ours(status: int, remark: str | None) -> None:
    assert read_refusal(status, remark) is None
