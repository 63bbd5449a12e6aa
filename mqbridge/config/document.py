"""Reads a YAML text as plain data, with the line of every key.

PyYAML composes the nodes, so every key and item has its line. Duplicate keys are rejected, because YAML would silently drop one
of their values. `${NAME}`, also `${env:NAME}`, and `${file:PATH}` are substituted inside scalars after parsing; each may have a
`:-default`. A substituted value is always text and never changes the structure. It may be a secret, so errors show its variable
instead.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mqbridge.errors import ConfigError

KeyPath = tuple[str | int, ...]

_VARIABLE = re.compile(
    r"\$\$\{"  # an escaped ${
    r"|\$\{(?:(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)|file:(?P<file>[^{}:]+))"
    r"(?P<default>:-(?:[^{}]|\{[^{}]*\})*)?\}"  # the default may contain {topic}
    r"|(?P<wrong>\$\{[^}]*\}?)"
)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TEXT_TAG = "tag:yaml.org,2002:str"

SHORTEST_HIDDEN = 6
"""Substituted values with fewer characters are shown in errors."""
MAX_VALUE_BYTES = 64 << 10
"""Maximum size of a file whose content is substituted."""


class Document:
    """The data of one configuration, and the line of each key and item."""

    def __init__(self, name: str, data: Any, lines: dict[KeyPath, int], errors: list[ConfigError]) -> None:
        self.name, self.data, self.lines, self.errors = name, data, lines, errors
        self.replaced: dict[str, str] = {}
        """The variables as written in the file, by their substituted values."""

    def location(self, path: KeyPath) -> str:
        """Return the file and line of a path as `file.yaml:12`; for a missing key, the line of its nearest parent in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name

    def error(self, path: KeyPath, problem: str, hint: str = "") -> ConfigError:
        """Make an error at this path, with substituted values hidden."""
        return ConfigError(self.hidden(problem), location=self.location(path), path=format_path(path), hint=self.hidden(hint))

    def hidden(self, text: str) -> str:
        """Replace substituted values in a text by their variables."""
        for value in sorted(self.replaced, key=len, reverse=True):
            text = text.replace(value, self.replaced[value])
        return text


def format_path(path: KeyPath) -> str:
    """Format a path as `routes[0].to.topic`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def compose(text: str, name: str, environ: Mapping[str, str]) -> Document:
    """Read a YAML text. Raises ConfigError for a syntax error or an empty file; other problems are collected in `errors`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            f"this is not well-formed YAML: {reason}",
            location=f"{name}:{mark.line + 1}" if mark else name,
            hint="Check the indentation and the quotes at and above this line",
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not YAML text: {error}", location=name) from error
    if root is None:
        raise ConfigError("the file is empty", location=name, hint="Start from one of the examples in config/")
    return _Reader(name, environ).read(root)


class _Reader:
    """Converts composed nodes to data."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._scalars = SafeConstructor()
        self._open: list[Node] = []
        self._document = Document(name, None, {}, [])

    def read(self, root: Node) -> Document:
        self._document.data = self._value(root, ())
        return self._document

    def _value(self, node: Node, path: KeyPath) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if node in self._open:
            self._problem(node, path, "this alias refers to an anchor that contains it", "Write the value out")
            return None
        self._open.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        self._refuse_duplicates(node, path)
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            try:
                self._scalars.flatten_mapping(node)
            except yaml.MarkedYAMLError as error:
                self._problem(node, path, f"`<<` cannot be merged: {error.problem}", "Merge an anchor of a mapping")
        found: dict[str, Any] = {}
        for key, value in node.value:
            # Keys are always text, whatever type YAML gives them: a cluster may be called 1 or no.
            inner = (*path, str(key.value))
            self._document.lines[inner] = key.start_mark.line + 1
            found[str(key.value)] = self._value(value, inner)
        return found

    def _refuse_duplicates(self, node: MappingNode, path: KeyPath) -> None:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self._problem(key, path, "a key must be a word", "Write the mapping as KEY: VALUE")
            elif key.value in first:
                problem = f"this key is already in line {first[key.value]}"
                self._problem(key, (*path, key.value), problem, "Remove one of them")
            else:
                first[key.value] = line

    def _scalar(self, node: Node, path: KeyPath) -> Any:
        if node.tag == _TEXT_TAG:
            return _VARIABLE.sub(lambda found: self._variable(found, node, path), node.value)
        try:
            return self._scalars.construct_object(node)
        except (yaml.MarkedYAMLError, ValueError) as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
            self._problem(node, path, f"this value cannot be read: {reason}", "Put quotes around it if it is text")
            return None

    def _variable(self, found: re.Match[str], node: Node, path: KeyPath) -> str:
        name, default = found["name"], found["default"]
        if found["wrong"]:
            problem = f"{found['wrong']!r} is not a variable"
            self._problem(node, path, problem, "Write ${NAME} or ${NAME:-default}, ${file:PATH}, and $${ for a plain ${")
        if not name and not found["file"]:
            return found[0].removeprefix("$")
        value, reason = (self._environ.get(name), "is not set") if name else _content(found["file"])
        if value:
            self._hide(value, name or f"file:{found['file']}")
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            source, remedy = ("environment variable", "Set it") if name else ("file", "Write it")
            key = name or f"file:{found['file']}"
            problem = f"the {source} {name or found['file']} {reason}"
            self._problem(node, path, problem, f"{remedy}, or give a default: ${{{key}:-default}}")
        return value or ""

    def _hide(self, value: str, key: str) -> None:
        """Hide a substituted value in errors, except a very short one: it occurs in many texts, and is no secret."""
        if len(value) >= SHORTEST_HIDDEN:
            for shown in (value, repr(value)[1:-1]):
                self._document.replaced[shown] = f"${{{key}}}"

    def _problem(self, node: Node, path: KeyPath, problem: str, hint: str) -> None:
        location = f"{self._document.name}:{node.start_mark.line + 1}"
        self._document.errors.append(ConfigError(problem, location=location, path=format_path(path), hint=hint))


def _content(path: str) -> tuple[str | None, str]:
    """Return a file's text without trailing white space, or None and the reason."""
    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(MAX_VALUE_BYTES + 1)
        if len(raw) > MAX_VALUE_BYTES:
            return None, f"is larger than {MAX_VALUE_BYTES >> 10} KiB"
        return raw.decode().rstrip(), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return None, "is not UTF-8 text"
