"""Every kind of invalid configuration is reported with the exact line, path, problem and hint (problems.yaml)."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mqbridge.config.load import parse
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ConfigError
from tests.config.fakes import ADAPTERS

CASES: dict[str, list[dict[str, str]]] = yaml.safe_load((Path(__file__).parent / "problems.yaml").read_text(encoding="utf-8"))

GOOD = """\
clusters:
  a: {system: fake, masters: [x]}
  b: {system: fake, masters: [x]}
routes:
  - name: r
    from: {cluster: a, topic: orders, group: g}
    to: {cluster: b}
"""


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml", environ=environ, adapters=ADAPTERS)
    error = caught.value
    return [str(one) for one in error.errors] if isinstance(error, ConfigErrors) else [str(error)]


def test_the_valid_configuration_has_no_problems() -> None:
    assert parse(GOOD, "f.yaml", environ={}, adapters=ADAPTERS).routes[0].targets[0].topic == "{topic}"


def case(table: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", CASES[table], ids=lambda one: one["says"].split(": ")[1][:40])


@case("changes")
def test_a_changed_configuration_is_rejected(case: dict[str, str]) -> None:
    assert case["replace"] in GOOD
    assert case["says"] in problems(GOOD.replace(case["replace"], case["by"], 1))


@case("additions")
def test_an_extra_line_is_rejected(case: dict[str, str]) -> None:
    assert case["says"] in problems(f"{GOOD}{case['line']}\n")


@case("deliveries")
def test_an_invalid_delivery_is_rejected(case: dict[str, str]) -> None:
    assert case["says"] in problems(f"{GOOD}    delivery: {{{case['body']}}}\n")


@case("filters")
def test_an_invalid_filter_is_rejected(case: dict[str, str]) -> None:
    assert case["says"] in problems(f"{GOOD}    filter: {{{case['body']}}}\n")


@case("files")
def test_an_invalid_file_is_rejected(case: dict[str, str]) -> None:
    assert problems(case["text"]) == [case["says"]]


def test_all_problems_are_reported_in_the_order_of_lines() -> None:
    text = textwrap.dedent("""\
        clusters:
          a: {system: fake, port: x}
          b: {system: fak}
        routes:
          - name: r
            from: {cluster: aa, topic: x}
            to: {cluster: b, topic: '{y}'}
          - name: r
            from: {cluster: a, topic: x, group: '${G}'}
            to: {cluster: b, options: {compression: lz4}}
        shutdown: 3s
        """)
    locations = [problem.split(": ")[:2] for problem in problems(text)]
    assert locations == [
        ["f.yaml:2", "clusters.a.masters"],
        ["f.yaml:2", "clusters.a.port"],
        ["f.yaml:3", "clusters.b.system"],
        ["f.yaml:6", "routes[0].from.cluster"],
        ["f.yaml:6", "routes[0].from.group"],
        ["f.yaml:7", "routes[0].to.topic"],
        ["f.yaml:8", "routes[1].name"],
        ["f.yaml:9", "routes[1].from.group"],
        ["f.yaml:11", "shutdown"],
    ]


# --- groups whose members must all have the same subscription --------------------------------------------------------------

UNIFORM = {"fake": replace(ADAPTERS["fake"], uniform_groups=True)}


def two_routes(source: str, cluster: str = "{system: fake, masters: [x]}") -> str:
    return GOOD.replace("b: {system: fake, masters: [x]}", f"b: {cluster}") + (
        f"  - name: s\n    from: {{{source}}}\n    to: {{cluster: b, topic: copy}}\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "cluster: a, topic: bills, group: g",
        "cluster: a, topics: [orders, bills], group: g",
        "cluster: a, topic: orders, group: g, msg_types: [x]",
        "cluster: a, topic: orders, group: g, options: {pull_bytes: 7}",
        "cluster: b, topic: bills, group: g",  # the same cluster by another name
    ],
)
def test_two_routes_of_one_group_with_different_subscriptions_are_rejected(source: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse(two_routes(source), "f.yaml", environ={}, adapters=UNIFORM)
    (error,) = caught.value.errors
    assert str(error) == (
        "f.yaml:9: routes[1].from.group: the route in f.yaml:6 uses the group 'g' too, with other topics, message "
        "types or options; all members of a fake group must have the same subscription. Give this route its own group, or "
        "merge the two routes"
    )
    assert parse(two_routes(source), "f.yaml", environ={}, adapters=ADAPTERS).routes[1].name == "s", (
        "systems without uniform_groups accept it"
    )


@pytest.mark.parametrize(
    "source",
    [
        "cluster: a, topic: orders, group: g",  # the routes share the partitions
        "cluster: a, topics: [orders], group: g, start: latest",
        "cluster: a, topic: bills, group: h",
    ],
)
def test_two_routes_of_one_group_may_have_the_same_subscription(source: str) -> None:
    assert len(parse(two_routes(source), "f.yaml", environ={}, adapters=UNIFORM).routes) == 2


def test_groups_with_the_same_name_in_two_clusters_are_independent() -> None:
    text = two_routes("cluster: b, topic: bills, group: g", "{system: fake, masters: [y]}")
    assert len(parse(text, "f.yaml", environ={}, adapters=UNIFORM).routes) == 2
