"""Writes docs/reference/configuration.md from the models of the options, so that the page matches the program.

python -m tools.configuration_page --check     exits 1 when the file is not current
python -m tools.configuration_page --write
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.schema import Schema, schema_without_variables
from mqbridge.net.secret import SECRET_FORMAT
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "configuration.md"

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m tools.configuration_page --write` from the models. Do not edit. -->

One YAML file contains everything: the clusters, the routes between them, the listeners over them, and the settings of the
process. `mqbridge example` prints [complete files](../../mqbridge/shipped). `mqbridge check FILE` reports all problems of a file
at once, each with its line. `mqbridge schema` prints the JSON Schema, which editors use for completion.

- **Variables.** `${NAME}`, also `${env:NAME}`, and `${file:PATH}` are replaced inside values, never inside keys. This happens
  after the YAML has been parsed: their values are always text and cannot change the structure. `${NAME:-default}` gives the
  default if the variable is not set or is empty; a default may contain `{words}` of a topic template. A missing variable without
  a default is an error. `$${` writes a plain `${`. Errors show the variable, not its value.
- **Secrets** are a text or name their source: `{file: PATH}`, `{env: NAME}` or `{command: [PROGRAM, ARGUMENT]}`. A source is read
  again when the secret is needed, so a replaced secret is used without a restart; see [security.md](../how-to/security.md).
- **Durations** need a unit: `250ms`, `30s`, `5m`, `1h30m`, `2d`.
- **Sizes** are whole bytes or have a unit: `64KiB`, `32MiB`, `1GiB`, or decimal `64KB`, `1MB`, `1GB`.
- **Topics.** A topic is an exact name. `~PATTERN` is a Python regular expression that must match a whole topic name; put it in
  quotes. The target's topic is a template: `{topic}` is the source topic, `{name}` the pattern's named group `(?P<name>...)`.
- **Patterns.** Names and texts come from others, and Python tries one way to match after the other. So a pattern that has
  exponentially many is refused, such as `(a+)+`; write `a+`. One with several open repeats, such as `.*a.*b.*`, is tried on
  texts of limited length only (7745 characters with two repeats, 564 with three, 163 with four). A topic or a property with a
  longer name does not match; a message with a longer text passes the filter. Both are logged.
- **Reloading.** The running gateway reads the file again on SIGHUP, on `POST /reload` and, with `reload.watch`, when the file has
  changed. If the file is invalid, its problems are logged and shown by `/health/ready`, and nothing changes. Otherwise routes
  that are new, changed, or stopped by an error are started. Removed routes are drained and stopped. All other routes continue
  with their connections. A listener whose options and clusters are unchanged continues, too; any other sends its clients away,
  and is bound again. `state` and `http` are read only at the start.
- **Unknown keys** and duplicate keys are errors. YAML anchors and `<<` may be used for repeated parts.

## A small example

```yaml
clusters:
  old: {system: tubemq, masters: "127.0.0.1:8715"}
  new: {system: pulsar, service_url: "pulsar://127.0.0.1:6650", admin_url: "http://127.0.0.1:8080"}
routes:
  - name: orders
    from: {cluster: old, topic: orders, group: mqbridge}
    to: {cluster: new, topic: "persistent://public/default/{topic}", create: {subscriptions: [billing]}}
```

## A listener

Unmodified Pulsar clients of an application beside the gateway send to RocketMQ, and consume from it. A listener needs no routes;
both may be in one file. With `system: rocketmq` or `tubemq` it serves their clients: see how to keep your
[Pulsar SDK](../how-to/keep-your-pulsar-sdk.md), your [RocketMQ SDK](../how-to/keep-your-rocketmq-sdk.md) or your [TubeMQ
SDK](../how-to/keep-your-tubemq-sdk.md).

```yaml
clusters:
  rocket: {system: rocketmq, name_servers: "127.0.0.1:9876"}
listeners:
  - name: app
    system: pulsar
    cluster: rocket
    web: 127.0.0.1:8080                               # lookups over HTTP, and a part of the admin API
    create: {partitions: 8}
```

## A larger example

Several topics are written to two targets, each with its own partitions and edits. A message is acknowledged after both targets
have stored it.

```yaml
clusters:
  old: {system: tubemq, masters: "127.0.0.1:8715", admin_url: "http://127.0.0.1:8080"}
  new: {system: pulsar, service_url: "pulsar://127.0.0.1:6650", admin_url: "http://127.0.0.1:8081"}
  archive: {system: log, path: archive.db}
routes:
  - name: orders
    from: {cluster: old, topic: "~orders_(?P<region>.+)", group: regions, refresh: 30s}
    filter:
      include:                                        # one of these
        - msg_type: {one_of: [created, paid]}
        - key: {pattern: "vip-.*"}
          properties: {tenant: {present: true}}       # and this
      exclude:
        properties: {test: {equals: "1"}}
    to:
      - cluster: new
        topic: "persistent://public/default/orders-{region}"
        create: {subscriptions: [billing]}            # Pulsar keeps the messages for its consumers
        partitions: {by: key, key: [key, "property:user"]}
        edit:
          set: {region: "{region}", came_from: "{topic}/{partition}"}
          remove: [password, "~internal-.*"]
          key: "{property:user}"
      - cluster: archive
        partitions: {by: identity}
reload: {watch: 5s}
```
"""

OPTION_GROUPS = (
    ("routes[]", "Route"),
    ("routes[].from", "Source"),
    ("routes[].filter", "FilterRules"),
    ("routes[].filter.include, exclude", "FilterRule"),
    ("routes[].filter.include, exclude: msg_type, key, properties.NAME", "Condition"),
    ("routes[].to", "Target"),
    ("routes[].to.create, routes[].delivery.dead_letter.create", "CreateRule"),
    ("routes[].to.partitions", "PartitionRule"),
    ("routes[].to.edit", "EditRules"),
    ("routes[].delivery", "Delivery"),
    ("routes[].delivery.retry", "Retry"),
    ("routes[].delivery.dead_letter", "DeadLetter"),
    ("listeners[]", "ListenerConfig"),
    ("listeners[].create", "ListenerCreate"),
    ("listeners[].sends", "ListenerSends"),
    ("listeners[].sends.dead_letter", "ListenerDeadLetter"),
    ("listeners[].limits", "ListenerLimits"),
    ("http", "Http"),
    ("reload", "Reload"),
    ("log", "Log"),
)
"""The sections of the page: the heading and the model of each option group."""
TLS_MODEL = "TlsOptions"
"""The name of the TLS model, which all systems share."""


def page(adapters: Mapping[str, Adapter] | None = None) -> str:
    """Return the text of the page, with the options of these adapters; None means all installed adapters."""
    installed = load_adapters() if adapters is None else adapters
    schema = schema_without_variables(installed)
    sections = [_section("##", "The file", schema, schema)]
    for heading, name in OPTION_GROUPS:
        sections.append(_section("##", heading, schema["$defs"][name], schema))
    for system in sorted(installed):
        sections.extend(_system_sections(installed[system], schema))
    if TLS_MODEL in schema["$defs"]:
        sections.append(_section("##", "clusters.NAME.tls, for every system", schema["$defs"][TLS_MODEL], schema))
    return _INTRODUCTION + "\n" + "\n".join(sections)


def _system_sections(adapter: Adapter, schema: Schema) -> Iterator[str]:
    """Yield the sections of a system: its clusters, their nested option groups, and the options of sources and targets."""
    body = schema["$defs"][f"cluster.{adapter.system}"]
    yield _section("##", f"clusters with system: {adapter.system}", body, schema)
    for key, value in body.get("properties", {}).items():
        for name in _model_names(value):
            if name != TLS_MODEL:
                yield _section("###", f"clusters.NAME.{key} for {adapter.system}", schema["$defs"][name], schema)
    endpoints = (
        (f"routes[].from.options for {adapter.system} (inbound)", adapter.inbound_options),
        (f"routes[].to.options for {adapter.system} (outbound)", adapter.outbound_options),
    )
    for heading, model in endpoints:
        model_schema = model.model_json_schema()
        if model_schema.get("properties"):
            yield _section("###", heading, model_schema, model_schema)


def _model_names(value: Schema) -> Iterator[str]:
    """Yield the names of the models that the value of a key may have."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2]
    for inner in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _model_names(inner)


def _section(level: str, heading: str, body: Schema, schema: Schema) -> str:
    """Return a section with a table of the keys of `body`. `level` is `##` or `###`; `schema` has the `$defs` of references."""
    lines = [f"{level} {heading}", ""]
    if text := body.get("description"):
        lines += [text.split("\n\n")[0].replace("\n", " "), ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    required = body.get("required", ())
    for key, value in body.get("properties", {}).items():
        default = "**required**" if key in required else _default(value)
        cells = (
            f"`{key}`",
            _type_text(value, schema),
            default,
            value.get("description", _follow_reference(value, schema).get("description", "")),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(value: Schema) -> str:
    """Return the text of the column `default`; "as below" for a group of options, whose defaults its own section shows."""
    default = value.get("default")
    if default is None:
        return "null" if "default" in value else ""
    if isinstance(default, dict):
        return "as below" if default else "`{}`"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _follow_reference(value: Schema, schema: Schema) -> Schema:
    """Return the schema that the value refers to, or the value itself if it is no reference."""
    if "$ref" in value:
        return dict(schema["$defs"][value["$ref"].rpartition("/")[2]])
    return value


def _type_text(value: Schema, schema: Schema) -> str:
    """Return the text of the column `value`: which values the key accepts."""
    value = _follow_reference(value, schema)
    if value.get("format") == SECRET_FORMAT:
        return "secret"
    if choices := value.get("anyOf") or value.get("oneOf"):
        types = dict.fromkeys(_type_text(inner, schema) for inner in choices)
        return " or ".join(name for name in types if name != "null")
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if value.get("format") in {"duration", "size", "address", "path"}:
        return str(value["format"])
    if value.get("type") == "array":
        return f"list of {_type_text(value.get('items', {}), schema)}"
    if value.get("type") == "object":  # one with fixed keys has `properties`, one with any keys `additionalProperties`
        return "mapping" if "properties" in value or not value.get("additionalProperties") else "mapping by name"
    return {"string": "text", "integer": "whole number", "boolean": "true, false"}.get(_type_name(value), _type_name(value))


def _type_name(value: Schema) -> str:
    """Return the JSON Schema's own name of the type, or of several types."""
    json_type: Any = value.get("type", "anything")
    return json_type if isinstance(json_type, str) else " or ".join(json_type)


def main(arguments: list[str] | None = None) -> int:
    """Check or write the page; return the exit code."""
    return check_or_write("tools.configuration_page", PAGE, page(), arguments)


if __name__ == "__main__":
    sys.exit(main())
