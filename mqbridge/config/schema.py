"""The JSON Schema of a configuration, with the models of every installed adapter.

Editors use it for completion and checks. The schema of a cluster is chosen by its `system`. The `options` of a source or target
depend on the system of its cluster, and JSON Schema cannot express that: the schema accepts the options of any adapter, and only
`mqbridge check` verifies them. Texts may contain `${NAME}` anyway; the schema also allows it in place of numbers, booleans and
enumerations.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.base import ONE_OR_MORE
from mqbridge.config.options.config import Config
from mqbridge.config.units import format_duration, format_size

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_DEFAULT_FORMATTERS = {"duration": format_duration, "size": format_size}
_VARIABLE = {"type": "string", "pattern": r"\$\{.+\}", "description": "A value from the environment."}


def json_schema(adapters: Mapping[str, Adapter] | None = None) -> Schema:
    """Return the schema of a configuration file; `adapters` None means the installed adapters."""
    schema = _allow_variables(schema_without_variables(adapters))
    schema["$defs"]["variable"] = _VARIABLE
    return schema


def schema_without_variables(adapters: Mapping[str, Adapter] | None = None) -> Schema:
    """Return the schema without `${NAME}` as an alternative; the reference page is generated from it."""
    adapters = load_adapters() if adapters is None else adapters
    installed = [adapters[system] for system in sorted(adapters)]
    names, defs = _definitions(installed)
    # Placeholders of the cluster settings and of `options`; the models of the adapters replace them below.
    del defs["ClusterConfig"], defs["BaseModel"]
    for adapter in installed:
        defs[f"cluster.{adapter.system}"] = _cluster_schema(adapter, defs[names[adapter.cluster_model]])
    clusters = [_ref(f"cluster.{adapter.system}") for adapter in installed]
    schema: Schema = defs.pop(names[Config])
    schema["properties"]["clusters"]["additionalProperties"] = {"oneOf": clusters}
    _set_options(defs["Source"], (names[adapter.inbound_options] for adapter in installed))
    _set_options(defs["Target"], (names[adapter.outbound_options] for adapter in installed))
    schema |= {"$schema": DIALECT, "title": "mqbridge configuration", "$defs": dict(sorted(defs.items()))}
    _tidy(schema)
    return schema


def _definitions(installed: Iterable[Adapter]) -> tuple[dict[type[BaseModel], str], Schema]:
    """Return the name of each model in `$defs`, and the `$defs` with all models and the models that they contain."""
    models: list[type[BaseModel]] = [Config]
    for adapter in installed:
        models += [adapter.cluster_model, adapter.inbound_options, adapter.outbound_options]
    references, combined = models_json_schema([(model, "validation") for model in dict.fromkeys(models)], by_alias=True)
    names = {model: references[model, "validation"]["$ref"].rpartition("/")[2] for model in models}
    return names, combined["$defs"]


def _cluster_schema(adapter: Adapter, body: Schema) -> Schema:
    """Return the schema `body` of the adapter's cluster model with the required key `system`, whose only value is this system."""
    system = {"const": adapter.system, "type": "string", "description": "The system that the cluster runs."}
    return {
        **body,
        "properties": {"system": system, **body.get("properties", {})},
        "required": ["system", *(key for key in body.get("required", ()) if key != "system")],
    }


def _set_options(endpoint: Schema, names: Iterable[str]) -> None:
    """Let the `options` of a source or target be any of the models with these names, or null."""
    choices = [_ref(name) for name in dict.fromkeys(names)]
    endpoint["properties"]["options"] = {
        "anyOf": [*choices, {"type": "null"}],
        "default": None,
        "description": endpoint["properties"]["options"]["description"],
    }


def _single_or_list(value: Schema) -> None:
    """Change the schema of an array with the mark ONE_OR_MORE so that it also accepts a single item."""
    del value[ONE_OR_MORE]
    array = {key: value.pop(key) for key in ("type", "items", "minItems") if key in value}
    value["anyOf"] = [array["items"], array]


def _ref(name: str) -> Schema:
    """Return a reference to the schema `name` in `$defs`."""
    return {"$ref": f"#/$defs/{name}"}


def _tidy(node: Schema) -> None:
    """Change a schema and its subschemas for publication.

    Defaults are written with units, and arrays with the mark ONE_OR_MORE also accept a single item. Keywords that
    only pydantic knows, and the titles of properties, are removed.
    """
    # The format of an optional value is in one of its alternatives, beside null.
    formats = [inner.get("format") for inner in (node, *node.get("anyOf", ()))]
    format_value = next((_DEFAULT_FORMATTERS[name] for name in formats if name in _DEFAULT_FORMATTERS), None)
    if format_value is not None and isinstance(node.get("default"), (int, float)):
        node["default"] = format_value(node["default"])
    for keyword in ("gt", "ge", "lt", "le"):
        node.pop(keyword, None)
    for value in node.get("properties", {}).values():
        value.pop("title", None)
        if ONE_OR_MORE in value:
            _single_or_list(value)
    _change_subschemas(node, _tidy)


def _allow_variables(node: Schema) -> Schema:
    """Return the schema, with `${NAME}` as an alternative for numbers, booleans and enumerations."""
    if node.get("type") in ("integer", "number", "boolean") or "enum" in node:
        annotations: Schema = {key: node[key] for key in ("default", "description") if key in node}
        return {"anyOf": [{key: value for key, value in node.items() if key not in annotations}, _ref("variable")], **annotations}
    _change_subschemas(node, _allow_variables)
    return node


def _change_subschemas(node: Schema, change: Callable[[Schema], Schema | None]) -> None:
    """Apply `change` to every direct subschema, and replace the subschema by the result unless that is None."""
    for keyword in ("properties", "$defs"):
        for key, inner in node.get(keyword, {}).items():
            node[keyword][key] = change(inner) or inner
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in node:
            node[keyword] = [change(inner) or inner for inner in node[keyword]]
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            node[keyword] = change(node[keyword]) or node[keyword]
