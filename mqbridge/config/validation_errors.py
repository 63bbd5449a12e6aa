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
from mqbridge.net.secret import SECRET_FORMAT

Schema = Mapping[str, Any]


def explain(document: Document, error: ValidationError, schema: Schema, base_path: KeyPath = ()) -> list[ConfigError]:
    """Convert a ValidationError to one error per path and message.

    `base_path` is the path of the validated value in the file, and `schema` is the JSON Schema of that value. Below, `loc` is a
    path of pydantic, which begins at the validated value.
    """
    problems: dict[tuple[KeyPath, str], ConfigError] = {}
    details = error.errors(include_url=False)
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "too_short" and any(other["loc"][: len(loc)] == loc != other["loc"] for other in details):
            continue  # pydantic does not count invalid items, which have errors of their own: the list is not too short
        path = _path_in_file(document, base_path, loc, missing=detail["type"] == "missing")
        problem, hint = _describe_error(detail, schema, loc)
        problems.setdefault((path, problem), document.error(path, problem, hint))
    return list(problems.values())


def _path_in_file(document: Document, base_path: KeyPath, loc: KeyPath, *, missing: bool) -> KeyPath:
    """Return the path in the file: `base_path`, and the parts of `loc` that are in the file; also the last part if `missing`.

    If the document was not read from a file, so that it has no lines, every part is kept.
    """
    path = base_path
    for index, part in enumerate(loc):
        is_last = index == len(loc) - 1
        if not document.lines or (*path, part) in document.lines or (is_last and missing):
            path = (*path, part)
    return path


def _describe_error(detail: ErrorDetails, schema: Schema, loc: KeyPath) -> tuple[str, str]:
    """Return the problem and the hint for one of pydantic's errors."""
    error_type = detail["type"]
    given = HiddenValue() if _has_secret(schema, loc) else detail["input"]
    if error_type == "missing":
        return "is missing", _description(schema, loc)
    if error_type == "extra_forbidden":
        return "there is no such key here", nearest(loc[-1], keys_at(schema, loc[:-1]))
    if error_type in {"model_type", "dict_type"}:
        keys = ", ".join(sorted(keys_at(schema, loc)))
        problem = "must be a mapping" if isinstance(given, (list, tuple)) else f"must be a mapping, not {given!r}"
        return problem, f"Its keys are {keys}" if keys else ""
    if error_type in {"string_too_short", "too_short"}:
        return "must not be empty", _description(schema, loc)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    context = detail.get("ctx", {})
    if error_type in {"enum", "literal_error"}:
        hint = nearest(given, _split_choices(context["expected"]))
        # The hint is `Did you mean ...?`, or lists all choices if none is similar; the problem lists them already.
        return f"{given!r} is not one of {context['expected']}", hint if hint.startswith("Did") else ""
    if error_type == "string_type":
        is_plain = isinstance(given, (bool, int, float, date))
        return f"must be a text, not {given!r}", "Put quotes around it" if is_plain else ""
    show_value = given is not None and not isinstance(given, (dict, list, tuple)) and message.startswith("Input should")
    return f"{message}, not {given!r}" if show_value else message, str(context.get("hint", ""))


class HiddenValue:
    """Stands for a value that must not be shown in an error."""

    def __repr__(self) -> str:
        return "the current value"


def _has_secret(schema: Schema, loc: KeyPath) -> bool:
    """Return True if the schema has a secret at this path or directly below it: a misplaced secret must not be logged either."""
    while loc and not (schemas := list(_schemas_at(schema, schema, loc))):
        loc = loc[:-1]  # the last part is pydantic's name of an alternative, not a key
    if not loc:
        return False
    below = [inner for outer in schemas for key in outer.get("properties", ()) for inner in _schemas_at(schema, outer, (key,))]
    return any(described.get("format") == SECRET_FORMAT for described in (*schemas, *below))


def _split_choices(expected: str) -> list[str]:
    """Split pydantic's list of choices: `'a', 'b' or 'c'`."""
    return [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]


def keys_at(schema: Schema, loc: KeyPath) -> set[str]:
    """Return the keys that are allowed at this path."""
    return {key for described in _schemas_at(schema, schema, loc) for key in described.get("properties", ())}


def _description(schema: Schema, loc: KeyPath) -> str:
    """Return the description of the option at this path, without its full stop; empty if it has none."""
    for described in _schemas_at(schema, schema, loc):
        if description := described.get("description"):
            return str(description).removesuffix(".")
    return ""


def _schemas_at(root: Schema, here: Schema, loc: KeyPath) -> Iterator[Schema]:
    """Yield every schema that describes the value at `loc` below the schema `here`; references and alternatives are followed.

    `root` is the schema whose `$defs` the references name.
    """
    if "$ref" in here:
        name = here["$ref"].rpartition("/")[2]
        yield from _schemas_at(root, {**root["$defs"][name], **{key: value for key, value in here.items() if key != "$ref"}}, loc)
        return
    for inner in (*here.get("anyOf", ()), *here.get("oneOf", ()), *here.get("allOf", ())):
        yield from _schemas_at(root, inner, loc)
    if not loc:
        yield here
        return
    part, remaining = loc[0], loc[1:]
    inner = here.get("items") if isinstance(part, int) else here.get("properties", {}).get(part, here.get("additionalProperties"))
    if isinstance(inner, Mapping):
        yield from _schemas_at(root, inner, remaining)
