"""Converts pydantic's errors to errors with a line, a path and a hint.

Pydantic's paths also contain the names of union members, and index 0 for a single value in place of a list; only the parts that
are in the file are shown. The valid keys come from the JSON Schema of the model.
"""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mqbridge.config.document import Document, KeyPath
from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError
from mqbridge.secret import SECRET_FORMAT

Schema = Mapping[str, Any]


def explain(document: Document, error: ValidationError, schema: Schema, under: KeyPath = ()) -> list[ConfigError]:
    """Return one error per path and message. The paths in `error` are relative to `under`; `schema` describes the value there."""
    problems: dict[tuple[KeyPath, str], ConfigError] = {}
    details = error.errors(include_url=False)
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "too_short" and any(other["loc"][: len(loc)] == loc != other["loc"] for other in details):
            continue  # pydantic does not count invalid items, which have errors of their own: the list is not too short
        path = _path_in_file(document, under, loc, missing=detail["type"] == "missing")
        problem, hint = _describe_error(detail, schema, loc)
        problems.setdefault((path, problem), document.error(path, problem, hint))
    return list(problems.values())


def _path_in_file(document: Document, under: KeyPath, loc: KeyPath, *, missing: bool) -> KeyPath:
    path = under
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if not document.lines or (*path, part) in document.lines or (last and missing):
            path = (*path, part)
    return path


def _describe_error(detail: ErrorDetails, schema: Schema, loc: KeyPath) -> tuple[str, str]:
    kind, given = detail["type"], Hidden() if _holds_secret(schema, loc) else detail["input"]
    if kind == "missing":
        return "is missing", _description(schema, loc)
    if kind == "extra_forbidden":
        return "there is no such key here", nearest(loc[-1], keys_at(schema, loc[:-1]))
    if kind in {"model_type", "dict_type"}:
        keys = ", ".join(sorted(keys_at(schema, loc)))
        problem = "must be a mapping" if isinstance(given, (list, tuple)) else f"must be a mapping, not {given!r}"
        return problem, f"Its keys are {keys}" if keys else ""
    if kind in {"string_too_short", "too_short"}:
        return "must not be empty", _description(schema, loc)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    context = detail.get("ctx", {})
    if kind in {"enum", "literal_error"}:
        near = nearest(given, _words(context["expected"]))
        return f"{given!r} is not one of {context['expected']}", near if near.startswith("Did") else ""
    if kind == "string_type":
        is_plain = isinstance(given, (bool, int, float, date))
        return f"must be a text, not {given!r}", "Put quotes around it" if is_plain else ""
    shown = given is not None and not isinstance(given, (dict, list, tuple)) and message.startswith("Input should")
    return f"{message}, not {given!r}" if shown else message, str(context.get("hint", ""))


class Hidden:
    """Replaces a value that must not be shown in an error."""

    def __repr__(self) -> str:
        return "the current value"


def _holds_secret(schema: Schema, loc: KeyPath) -> bool:
    """Return True if the schema has a secret at this path or directly below it: a misplaced secret must not be logged either."""
    while loc and not (found := list(_schemas_at(schema, schema, loc))):
        loc = loc[:-1]  # the last part is pydantic's name of an alternative, not a key
    if not loc:
        return False
    below = [inner for outer in found for key in outer.get("properties", ()) for inner in _schemas_at(schema, outer, (key,))]
    return any(described.get("format") == SECRET_FORMAT for described in (*found, *below))


def _words(expected: str) -> list[str]:
    return [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]


def keys_at(schema: Schema, loc: KeyPath) -> set[str]:
    """Return the keys that are allowed at this path."""
    return {key for found in _schemas_at(schema, schema, loc) for key in found.get("properties", ())}


def _description(schema: Schema, loc: KeyPath) -> str:
    for found in _schemas_at(schema, schema, loc):
        if description := found.get("description"):
            return str(description).removesuffix(".")
    return ""


def _schemas_at(root: Schema, here: Schema, loc: KeyPath) -> Iterator[Schema]:
    """Yield every schema that describes the path below `here`; references and alternatives are followed."""
    if "$ref" in here:
        name = here["$ref"].rpartition("/")[2]
        yield from _schemas_at(root, {**root["$defs"][name], **{key: value for key, value in here.items() if key != "$ref"}}, loc)
        return
    for inner in (*here.get("anyOf", ()), *here.get("oneOf", ()), *here.get("allOf", ())):
        yield from _schemas_at(root, inner, loc)
    if not loc:
        yield here
        return
    part, rest = loc[0], loc[1:]
    under = here.get("items") if isinstance(part, int) else here.get("properties", {}).get(part, here.get("additionalProperties"))
    if isinstance(under, Mapping):
        yield from _schemas_at(root, under, rest)
