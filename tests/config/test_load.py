import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.registry import load_adapters
from mqbridge.config.base import ONE_OR_MORE
from mqbridge.config.load import from_dict, load, parse, wants_json_log
from mqbridge.config.options.config import Config
from mqbridge.config.options.delivery import MIN_IN_FLIGHT_BYTES, Delivery
from mqbridge.config.problems import ConfigErrors
from mqbridge.config.schema import json_schema
from mqbridge.errors import ConfigError
from tests.config.fakes import ADAPTERS, FakeCluster, FakeInbound, FakeOutbound
from tools import configuration_page as reference

EXAMPLES = sorted((Path(__file__).parents[2] / "mqbridge" / "shipped").glob("*.yaml"))

FULL = """\
clusters:
  a: &cluster {system: fake, masters: [m1, m2], port: "${PORT:-8}", strict: "${STRICT:-true}"}
  b: {<<: *cluster, port: 9}
routes:
  - name: r
    from:
      {cluster: a, topics: [plain, "~o_(?P<region>.+)"], group: g, start: latest, msg_types: [x],
       refresh: 5s, options: {pull_bytes: 9}}
    filter:
      include: {msg_type: {one_of: [x, y]}, properties: {tenant: {present: true}, region: {pattern: "eu-.*"}}}
      exclude: [{key: {equals: test}}, {properties: {trace: {present: false}}}]
    to:
      - {cluster: b, topic: "${TARGET:-{topic}-copy}", create: false,
         partitions: {by: key, key: property:user}, options: {compression: lz4}}
      - cluster: a
        topic: fixed
        partitions: {by: table, table: {"b:0": 1, 1: 0}}
        edit:
          remove: [secret, "~x-.*"]
          rename: {old: new}
          set: {where: "{topic}/{partition}", who: "{property:user}"}
          clear: [deliver_at]
          key: "{property:user}"
          keys: ["{key}"]
    delivery:
      order: none
      in_flight_bytes: 1MiB
      retry: {max_elapsed: 5m}
      dead_letter: {cluster: a, topic: dead}
      stamp_origin: false
      prevent_loops: true
      max_hops: 3
      rate: 10.5
      rate_bytes: 1MB
state: "literal $${HOME}"
http: {enabled: false, listen: "[::1]:0"}
log: {level: debug, format: json}
reload: {watch: 2s}
shutdown_timeout: 1m30s
"""


def read(text: str, **environ: str) -> Config:
    return parse(text, "f.yaml", environ=environ, adapters=ADAPTERS)


def test_every_option_can_be_set() -> None:
    config = read(FULL)
    (route,) = config.routes
    assert config.clusters["a"].settings == FakeCluster(masters=["m1", "m2"], port=8, strict=True)
    assert config.clusters["b"].settings == FakeCluster(masters=["m1", "m2"], port=9, strict=True)
    assert route.source.configured_topics == ("plain", "~o_(?P<region>.+)")
    assert route.source.start is Start.LATEST
    assert route.source.msg_types == {"x"}
    assert route.source.options == FakeInbound(pull_bytes=9)
    assert [target.options for target in route.targets] == [FakeOutbound(compression="lz4"), FakeOutbound()]
    assert [target.topic for target in route.targets] == ["{topic}-copy", "fixed"]
    assert (route.delivery.in_flight_bytes, route.delivery.rate_bytes) == (1 << 20, 10**6)
    assert route.delivery.retry.max_elapsed == 300
    assert (route.delivery.loops_prevented, route.delivery.max_hops, route.source.refresh) == (True, 3, 5)
    first, second = route.targets
    assert (first.partitions.by, first.partitions.key) == ("key", ("property:user",))
    assert second.partitions.table == {"b:0": 1, "1": 0}
    assert second.edit is not None
    assert (second.edit.set["who"], second.edit.keys) == ("{property:user}", ("{key}",))
    [include], excludes = route.filter.include, route.filter.exclude
    assert include.msg_type is not None
    assert include.msg_type.one_of == {"x", "y"}
    assert include.properties["tenant"].present is True
    assert [rule.properties["trace"].present for rule in excludes if rule.properties] == [False]
    assert route.clusters == {"a", "b"}
    assert config.reload.watch == 2
    assert str(config.state) == "literal ${HOME}"
    assert (config.http.host, config.http.port) == ("::1", 0)
    assert config.shutdown_timeout == 90


def test_defaults() -> None:
    (route,) = read("""\
clusters: {a: {system: fake, masters: [x]}, b: {system: fake, masters: [x]}}
routes: [{name: r, from: {cluster: a, topic: t, group: g}, to: {cluster: b}}]
""").routes
    assert route.source.start is Start.EARLIEST
    assert route.source.options == FakeInbound()
    assert [(target.topic, target.create, target.partitions.by) for target in route.targets] == [("{topic}", True, "modulo")]
    delivery = route.delivery
    assert (delivery.guarantee, delivery.order, delivery.in_flight_bytes) == ("at_least_once", "partition", 16 << 20)
    assert delivery.stamp_origin
    assert (delivery.loops_prevented, delivery.max_hops, route.source.refresh) == (True, 8, 60)
    assert (route.filter.include, route.filter.exclude, route.targets[0].edit) == ((), (), None)
    assert delivery.model_copy(update={"stamp_origin": False}).loops_prevented is False
    assert (delivery.retry.max_elapsed, delivery.dead_letter, delivery.rate, delivery.rate_bytes) == (None, None, None, None)


@pytest.mark.parametrize("size", [MIN_IN_FLIGHT_BYTES, 16 << 20, (1 << 20) + 1])
def test_the_bytes_in_flight_are_divided_between_reading_ahead_and_sending(size: int) -> None:
    delivery = Delivery(in_flight_bytes=size)
    assert delivery.read_ahead_bytes + delivery.sending_bytes == size
    assert delivery.sending_bytes - delivery.read_ahead_bytes in (0, 1)


def test_variables_become_text_and_cannot_change_the_structure() -> None:
    config = read(FULL, TARGET="x, create: true # [", PORT="12", STRICT="")
    target = config.routes[0].targets[0]
    assert (target.topic, target.create) == ("x, create: true # [", False)
    assert config.clusters["a"].settings == FakeCluster(masters=["m1", "m2"], port=12, strict=True)


def _written(config: Config) -> dict[str, Any]:
    """Return the configuration as plain data, as a user would write it."""
    data = config.model_dump(mode="json", by_alias=True)
    for name, cluster in data["clusters"].items():
        data["clusters"][name] = {"system": cluster["system"], **cluster["settings"]}
    return data


def test_a_dumped_configuration_loads_to_the_same() -> None:
    config = read(FULL)
    assert from_dict(_written(config), adapters=ADAPTERS) == config
    assert read(json.dumps(_written(config)).replace("${", "$${")) == config


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_load_without_environment_variables(path: Path) -> None:
    config = load(path, environ={})
    assert config.routes
    assert from_dict(_written(config)) == config


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"tubemq-to-pulsar.yaml", "pulsar-to-tubemq.yaml", "log-to-log.yaml"}


def test_the_example_takes_its_addresses_from_the_environment() -> None:
    environ = {
        "TUBEMQ_MASTERS": "m1:1,m2:2",
        "PULSAR_URL": "pulsar://p:1",
        "PULSAR_ADMIN_URL": "http://p:2",
        "SOURCE_TOPIC": "s",
        "TARGET_TOPIC": "t",
        "GROUP": "g",
        "START": "latest",
    }
    config = load(next(path for path in EXAMPLES if path.name == "tubemq-to-pulsar.yaml"), environ=environ)
    (route,) = config.routes
    assert config.clusters["tube"].settings.model_dump()["masters"] == ("m1:1", "m2:2")
    assert config.clusters["pulsar"].settings.model_dump()["service_url"] == "pulsar://p:1"
    assert config.clusters["pulsar"].settings.model_dump()["admin_url"] == "http://p:2"
    assert (route.source.configured_topics, route.targets[0].topic, route.source.group, route.source.start) == (
        ("s",),
        "t",
        "g",
        Start.LATEST,
    )


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")


def test_a_file_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(tmp_path / "f")


def test_plain_data_has_paths_but_no_lines() -> None:
    with pytest.raises(ConfigErrors) as caught:
        from_dict(
            {"clusters": {"a": {"system": "fake", "masters": ["x"]}}, "routes": [{"name": "r", "to": {}}]}, adapters=ADAPTERS
        )
    assert [(one.location, one.path) for one in caught.value.errors] == [("", "routes[0].from"), ("", "routes[0].to[0].cluster")]


# --- the schema and the reference ---------------------------------------------------------------------------------------


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_every_reference_in_the_schema_resolves() -> None:
    schema = json_schema()
    defined = {f"#/$defs/{name}" for name in schema["$defs"]}
    assert set(_references(schema)) <= defined
    systems = {ref["$ref"] for ref in schema["properties"]["clusters"]["additionalProperties"]["oneOf"]}
    assert systems == {f"#/$defs/cluster.{system}" for system in load_adapters()}


def test_the_schema_has_defaults_with_units() -> None:
    schema = json_schema(ADAPTERS)
    assert schema["properties"]["shutdown_timeout"]["default"] == "30s"
    assert schema["$defs"]["Delivery"]["properties"]["in_flight_bytes"]["default"] == "16MiB"
    assert schema["$defs"]["Source"]["properties"]["refresh"]["default"] == "1m"
    assert schema["$defs"]["cluster.fake"]["required"] == ["system", "masters"]
    assert schema["$defs"]["cluster.fake"]["additionalProperties"] is False


def test_the_schema_accepts_a_single_value_for_a_list_where_the_models_do() -> None:
    schema = json_schema()
    single = {
        f"{name}.{key}"
        for name, body in schema["$defs"].items()
        for key, value in body.get("properties", {}).items()
        if any(choice.get("items") in value["anyOf"] for choice in value.get("anyOf", ()) if "items" in choice)
    }
    assert single == {
        "Http.ready_without",
        "Route.to",
        "FilterRules.include",
        "FilterRules.exclude",
        "PartitionRule.key",
        "CreateRule.subscriptions",
    }
    assert ONE_OR_MORE not in json.dumps(schema)


def test_every_key_is_described() -> None:
    schema = json_schema()
    undescribed = [
        f"{name}.{key}"
        for name, body in schema["$defs"].items()
        for key, value in body.get("properties", {}).items()
        if not value.get("description")
        and not schema["$defs"].get(value.get("$ref", "").rpartition("/")[2], {}).get("description")
    ]
    assert undescribed == []


def test_the_reference_has_a_section_for_every_group_of_options() -> None:
    groups = {name for name, body in json_schema(ADAPTERS)["$defs"].items() if "properties" in body}
    systems = {"cluster.fake", *(model.__name__ for model in (FakeCluster, FakeInbound, FakeOutbound))}
    assert {name for _, name in reference.OPTION_GROUPS} == groups - systems


def test_the_reference_is_current() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run python -m tools.configuration_page --write"
    assert reference.main(["--check"]) == 0


def test_an_outdated_reference_page_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PAGE", tmp_path / "configuration.md")
    assert reference.main(["--check"]) == 1
    assert "is not current" in capsys.readouterr().err
    assert reference.main(["--write"]) == 0
    assert reference.main(["--check"]) == 0


def test_the_log_format_of_a_file_that_is_too_large_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = "log: {format: json}\n"
    monkeypatch.setattr("mqbridge.config.load.MAX_FILE_BYTES", len(beginning))
    path = tmp_path / "large.yaml"
    path.write_text(beginning + "]\n")
    assert wants_json_log(path)
