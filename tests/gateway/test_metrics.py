"""The metrics page, the alert rules and the dashboard agree with the declared metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqbridge.delivery.counters import BUCKETS_S, Histogram
from mqbridge.gateway.metrics.collector import families
from tools import metrics_page as page

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
NAME = re.compile(r"mqbridge_[a-z_]+")
LABELS = re.compile(r"(mqbridge_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def declared() -> dict[str, set[str]]:
    """Return every metric name with its labels."""
    found: dict[str, set[str]] = {}
    for family in families():
        more = {"le"} if family.kind == "histogram" else set()
        for suffix in SUFFIXES.get(family.kind, ("",)):
            found[family.full_name + suffix] = {*family.labels, *more}
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    return [
        *(rule["expr"] for rule in rules()),
        *(target["expr"] for panel in panels() for target in panel["targets"]),
        *(variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"),
    ]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_that_is_used_exists_with_its_labels(expression: str) -> None:
    known = declared()
    names = set(NAME.findall(expression))
    assert names <= known.keys()
    for name, selector in LABELS.findall(expression):
        used = set(re.findall(r"([a-z_]+)\s*[=!]~?", selector))
        assert used <= known[name] | {"job", "instance"}, name
    shared = set.union(*(known[name] for name in names)) if names else set()
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",")} <= shared


def test_every_alert_has_a_severity_and_a_remedy() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert len(rule["annotations"]["action"]) > 30, rule["alert"]
    assert {rule["alert"] for rule in rules()} >= {
        "MqbridgeReloadFailed",
        "MqbridgeGapPassed",
        "MqbridgeNoLanes",
        "MqbridgeClusterAway",
        "MqbridgeTargetStuck",
        "MqbridgeLagGrowing",
        "MqbridgeDeadLetters",
        "MqbridgeRouteStopped",
    }


def test_labels_in_the_texts_of_alerts_are_those_of_their_expressions() -> None:
    known = declared()
    for rule in rules():
        grouped = [set(re.split(r",\s*", group)) for group in GROUPED.findall(rule["expr"])]
        labels = grouped[0] if grouped else {"instance"}.union(*(known[name] for name in NAME.findall(rule["expr"])))
        used = set(re.findall(r"\$labels\.([a-z_]+)", " ".join(rule["annotations"].values())))
        assert used <= labels, rule["alert"]


def test_the_dashboard_has_variables_that_its_panels_use() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert {variable["name"] for variable in board["templating"]["list"]} >= {"route", "cluster"}
    text = json.dumps(panels())
    assert "$route" in text
    assert "$cluster" in text
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_the_page_is_current() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python -m tools.metrics_page --write"


def test_every_metric_is_described() -> None:
    names = [family.full_name for family in families()]
    assert len(names) == len(set(names))
    for family in families():
        assert NAME.fullmatch(family.full_name), family.name
        assert family.description, family.name
        assert family.when_to_look, family.name


def test_a_histogram_counts_each_value_in_the_bucket_that_ends_at_or_above_it() -> None:
    histogram = Histogram()
    for seconds in (0.0, BUCKETS_S[0], BUCKETS_S[0] * 1.01, 1e9):
        histogram.add(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-1] == 1
    assert histogram.seconds == pytest.approx(1e9)
