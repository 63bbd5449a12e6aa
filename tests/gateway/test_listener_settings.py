"""The settings of a listener: what depends on its name, its system and its cluster is filled in."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from mqbridge.adapter.names import ANY_NAME, NameRule
from mqbridge.adapter.registry import load_adapters
from mqbridge.config.options.listener import ListenerConfig
from mqbridge.gateway.listener_settings import default_group, settings_of
from mqbridge.listener.listener import ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.tubemq.adapter.cluster import TOPIC_NAME
from tests.kit.line_server import LINES


def settings(*, uniform_groups: bool = False, names: NameRule = ANY_NAME, **options: Any) -> ListenerSettings:
    config = ListenerConfig.model_validate({"name": "app", "system": "lines", "cluster": "a"} | options)
    return settings_of(config, LINES, uniform_groups=uniform_groups, dead_letter_names=names)


def test_defaults_come_from_the_name_and_the_system() -> None:
    assert asdict(settings()) == {
        "name": "app",
        "system": "lines",
        "host": "127.0.0.1",
        "port": 7650,
        "web": None,
        "advertise": None,
        "cluster": "a",
        "topics": "lines/{topic}",
        "owns_groups": False,
        "group": "{group}",
        "parking": "mqbridge-app",
        "create_partitions": 4,
        "manage": False,
        "deduplicate": False,
        "dead_letter_cluster": "a",
        "dead_letter_topic": "mqbridge-dead-app",
        "connections": 1000,
        "in_flight_bytes": 64 << 20,
        "unacknowledged_bytes": 32 << 20,
        "unacknowledged_span": 10_000,
    }


def test_every_option_is_used() -> None:
    made = settings(
        listen="[::1]:1",
        web="127.0.0.1:2",
        advertise="h:3",
        topics="x-{topic}",
        groups="own",
        group="g-{group}",
        parking="p",
        create=False,
        manage=True,
        sends={"deduplicate": True, "dead_letter": {"cluster": "b", "topic": "d"}},
        limits={"connections": 1, "in_flight_bytes": "1MiB", "unacknowledged_bytes": "2MiB", "unacknowledged_span": 3},
    )
    assert (made.host, made.port, made.web, made.advertise) == ("::1", 1, ("127.0.0.1", 2), "h:3")
    assert (made.topics, made.owns_groups, made.group, made.parking) == ("x-{topic}", True, "g-{group}", "p")
    assert (made.create_partitions, made.manage, made.deduplicate) == (None, True, True)
    assert (made.dead_letter_cluster, made.dead_letter_topic) == ("b", "d")
    assert (made.connections, made.in_flight_bytes, made.unacknowledged_bytes, made.unacknowledged_span) == (
        1,
        1 << 20,
        2 << 20,
        3,
    )


@pytest.mark.parametrize(
    ("spans", "uniform", "template"), [(False, True, "{group}-{topic}"), (False, False, "{group}"), (True, True, "{group}")]
)
def test_a_subscription_of_several_topics_is_several_groups_where_groups_are_uniform(
    spans: bool, uniform: bool, template: str
) -> None:
    assert default_group(replace(LINES, groups_span_topics=spans), uniform_groups=uniform) == template


@pytest.mark.parametrize(("system", "template"), [("pulsar", "{group}-{topic}"), ("rocketmq", "{group}")])
def test_the_groups_of_each_system_over_rocketmq(system: str, template: str) -> None:
    assert default_group(load_servers()[system], uniform_groups=load_adapters()["rocketmq"].uniform_groups) == template


def test_the_default_dead_letter_topic_is_escaped_where_the_system_refuses_its_name() -> None:
    assert settings(names=TOPIC_NAME).dead_letter_topic == "mqbridgex_2d_deadx_2d_app"
