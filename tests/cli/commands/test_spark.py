"""`mqbridge spark`: errors that are reported before Spark starts, and the report at the end."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mqbridge.cli.commands.spark_mirror import report
from mqbridge.config.load import from_dict
from mqbridge.errors import ConfigError
from tests.cli.conftest import Invoke


def test_the_group_lists_its_commands(invoke: Invoke) -> None:
    assert "mirror" in invoke("spark", "--help").out
    answer = invoke("spark", "mirror", "--help")
    assert answer.code == 0
    assert "mqbridge spark mirror rocketmq-to-pulsar.yaml" in answer.out


def test_a_missing_pyspark_is_reported_with_the_command_to_install_it(
    invoke: Invoke, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pyspark" else find_spec(name, *more))
    answer = invoke("spark", "mirror", config, "--checkpoint", config.parent / "m")
    assert answer.code == 2
    assert "pip install 'mqbridge[spark]'" in answer.err


pytest.importorskip("pyspark")


@pytest.mark.parametrize(
    ("version", "problem"),
    [("", "contains no bin/java"), ('openjdk version "11.0.2"', "is Java 11"), ('java version "1.8.0_2"', "is Java 8")],
)
def test_a_missing_or_old_java_is_reported_with_the_required_version(
    invoke: Invoke, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, problem: str
) -> None:
    if version:
        java = tmp_path / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    answer = invoke("spark", "mirror", config, "--checkpoint", tmp_path / "m")
    assert answer.code == 2
    assert problem in answer.err
    assert "Install Java 17" in answer.err


@pytest.fixture
def _java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))


@pytest.mark.usefixtures("_java")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--route", "copi"], "there is no route 'copi'"),
        (["--from", "12"], "is a position, and a route has many partitions"),
        (["--from", "yesterday"], "is neither a position nor a time"),
        (["--set", "master=x"], "'master=x' is not a setting of Spark"),
        (["--max-bytes-per-batch", "many"], "is not a size"),
        (["--metrics", "8098"], "is not an address"),
    ],
)
def test_wrong_options_are_rejected(invoke: Invoke, config: Path, arguments: list[str], problem: str) -> None:
    answer = invoke("spark", "mirror", config, "--checkpoint", config.parent / "m", *arguments)
    assert answer.code == 2
    assert problem in answer.err


@pytest.mark.usefixtures("_java")
def test_a_configuration_that_the_gateway_rejects_is_rejected_before_spark_starts(invoke: Invoke, config: Path) -> None:
    answer = invoke("spark", "mirror", config, "--checkpoint", config.parent / "m")
    assert answer.code == 3
    assert "the topic 'orders' does not exist in cluster 'source'" in answer.err


def test_the_summary_line_is_like_that_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    from mqbridge.spark.mirror.progress import RouteProgress

    one, two = RouteProgress("r", 0.0), RouteProgress("idle", 0.0, error="no")
    one.begin({"stored": 5})
    one.record_batch(2.0, {"received": 9, "stored": 12, "filtered": 1, "bytes": 3}, 2.0)
    report([one, two], 2.0, as_json=True)
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "route r: 9 received, 7 stored, 0 dead letters, 1 filtered in 2.0 s (4/s)",
        "route idle: 0 received, 0 stored, 0 dead letters in 2.0 s (0/s); stopped, see the error above",
    ]
    assert '"clean": false' in out


def test_source_and_sink_get_the_options_of_the_route(tmp_path: Path) -> None:
    from mqbridge.adapter.inbound import Start
    from mqbridge.spark.mirror.route_query import sink_options, source_options
    from mqbridge.spark.mirror.settings import MirrorSettings, select_routes
    from mqbridge.spark.options import Usage, parse_options

    data: dict[str, Any] = {
        "clusters": {"a": {"system": "memory"}, "b": {"system": "memory"}},
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "a", "topic": "t", "group": "g", "start": "latest", "refresh": "5s"},
                "to": {"cluster": "b"},
                "delivery": {"on_gap": "continue"},
            }
        ],
    }
    config = from_dict(data)
    (route,) = select_routes(config, ("r",))
    with pytest.raises(ConfigError, match="no routes"):
        select_routes(from_dict({"clusters": data["clusters"]}), ())
    settings = MirrorSettings(tmp_path / "c.yaml", "m")
    pumped = source_options(route, settings, tmp_path / "c.yaml", tmp_path / "stop", 4)
    values = parse_options(pumped, Usage.STREAM)
    assert (values["mode"], values["rangeTasks"], values["startingOffsets"]) == ("ranges", 4, Start.LATEST)
    assert (values["failOnDataLoss"], values["newTopicsInterval"]) == (False, 5.0)
    since = MirrorSettings(tmp_path / "c.yaml", "m", through="rows", start=1000)
    values = parse_options(source_options(route, since, tmp_path / "c.yaml", tmp_path / "stop", 4), Usage.STREAM)
    assert (values["mode"], values["startingTimestamp"], values["startingOffsets"]) == ("rows", 1000, None)
    assert parse_options(sink_options(route, tmp_path / "c.yaml", "m/r"), Usage.WRITE)["checkpointLocation"] == "m/r"


def test_the_quickstart_rejects_a_folder_that_is_not_empty(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    answer = invoke("spark", "quickstart", "--keep", tmp_path)
    assert answer.code == 2
    assert "the folder is not empty" in answer.err
