"""The rules for names agree with the checks of topics and groups, and members show their names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError
from mqbridge.rocketmq.adapter.names import GROUP_NAME, TOPIC_NAME
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.client.admin.name_rules import check_group
from mqbridge.rocketmq.client.connection.base_client import unique_instance
from mqbridge.rocketmq.client.consumer.subscription import retry_topic
from mqbridge.rocketmq.wire.names import FORBIDDEN_TOPICS

MODEL = ADAPTER.cluster_model(name_servers="ns:9876")
NAMES = st.text(st.sampled_from("aZ0%|_-./ é"), max_size=3) | st.sampled_from(sorted(FORBIDDEN_TOPICS))


@given(NAMES, st.sampled_from([1, 50, 127, 128]))
def test_the_topic_rule_agrees_with_the_check(name: str, times: int) -> None:
    name = (name * times)[:128]
    try:
        MODEL.check_topic_name(name)
    except ClusterError:
        assert TOPIC_NAME.problem(name) is not None
    else:
        assert TOPIC_NAME.problem(name) is None
        assert TOPIC_NAME.escape(name) == name


@pytest.mark.parametrize("size", [1, 248, 249])
def test_a_group_can_be_joined_if_its_retry_topic_has_a_valid_name(size: int) -> None:
    group = "g" * size
    if GROUP_NAME.problem(group) is None:
        check_group(retry_topic(group))
    else:
        with pytest.raises(ClusterError):
            check_group(retry_topic(group))


def test_instances_of_one_member_name_differ() -> None:
    names = {unique_instance("orders-1") for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("orders-1#") for name in names)
