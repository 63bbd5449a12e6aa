"""Names of targets that their system does not accept are mistakes of the file."""

from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.errors import ConfigError

CLUSTERS: dict[str, Any] = {
    "log": {"system": "log", "path": "a.db"},
    "tubemq": {"system": "tubemq", "masters": "one"},
    "rocketmq": {"system": "rocketmq", "name_servers": "one"},
    "pulsar": {"system": "pulsar", "service_url": "pulsar://one:6650"},
}


def problems(source: str | list[str], *targets: str, dead_letter: str | None = None, as_list: bool = True) -> list[str]:
    """Load a route from topics of the log to `CLUSTER/TOPIC`; return what is wrong."""
    ends = [dict(zip(("cluster", "topic"), target.split("/", 1), strict=True)) for target in targets]
    letters = None if dead_letter is None else dict(zip(("cluster", "topic"), dead_letter.split("/", 1), strict=True))
    topics = [source] if isinstance(source, str) else source
    route = {
        "name": "r",
        "from": {"cluster": "log", "group": "g", "topics": topics},
        "to": ends if as_list else ends[0],
        "delivery": {"dead_letter": letters},
    }
    try:
        from_dict({"clusters": CLUSTERS, "routes": [route]})
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("tubemq/c-d", "'c-d' cannot be a topic of TubeMQ"),
        ("rocketmq/c.d", "'c.d' cannot be a topic: 1 to 127 letters"),
        ("rocketmq/SCHEDULE_TOPIC_XXXX", "is a system topic"),
        ("pulsar/a/b", "write topic, tenant/namespace/topic or"),
    ],
)
def test_a_name_that_the_system_does_not_accept_is_a_mistake(target: str, part: str) -> None:
    [problem] = problems("orders", target, as_list=False)
    assert problem.startswith("routes[0].to.topic: ")
    assert part in problem
    [problem] = problems("~.*", "log/{topic}", target)
    assert problem.startswith("routes[0].to[1].topic: ")
    [problem] = problems("orders", "log/t", dead_letter=target)
    assert problem.startswith("routes[0].delivery.dead_letter.topic: ")


def test_a_template_is_checked_with_the_names_of_the_source() -> None:
    assert len(problems(["good", "bad.name", "bad-name"], "tubemq/{topic}", "rocketmq/{topic}")) == 2  # one for each option
    assert problems(["good", "bad-name"], "rocketmq/{topic}", "pulsar/{topic}", "log/x.{topic}") == []
    assert problems("~.*", "tubemq/x_{topic}") == []  # known only with the topics
