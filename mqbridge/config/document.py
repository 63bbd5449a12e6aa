"""A YAML text as plain data, with the line of every key.

PyYAML composes the nodes, so every key and item has its line. Duplicate keys are refused, because one of their values would be
lost without a word. `${NAME}` and `${NAME:-default}` are replaced inside scalars after parsing: a value from the environment is
always text and never changes the structure.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mqbridge.errors import ConfigError

Path = tuple[str | int, ...]

_VARIABLE = re.compile(
    r"\$\$\{"  # an escaped ${
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-(?:[^{}]|\{[^{}]*\})*)?\}"  # the default may hold {topic}
    r"|(?P<wrong>\$\{[^}]*\}?)"
)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TEXT_TAG = "tag:yaml.org,2002:str"


class Document:
    """The data of one configuration, and the line of each part of it."""

    def __init__(self, name: str, data: Any, lines: dict[Path, int], errors: list[ConfigError]) -> None:
        self.name, self.data, self.lines, self.errors = name, data, lines, errors

    def location(self, path: Path) -> str:
        """`file.yaml:12`: the line of the path, or of the nearest part above it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name

    def error(self, path: Path, problem: str, hint: str = "") -> ConfigError:
        """A problem at this path."""
        return ConfigError(problem, place=self.location(path), path=format_path(path), hint=hint)


def format_path(path: Path) -> str:
    """`routes[0].to.topic`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def compose(text: str, name: str, environ: Mapping[str, str]) -> Document:
    """Read a YAML text; problems other than broken syntax are collected in `errors`. Raises ConfigError for broken syntax."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            f"this is not well-formed YAML: {reason}",
            place=f"{name}:{mark.line + 1}" if mark else name,
            hint="Check the indentation and the quotes at and above this line",
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not YAML text: {error}", place=name) from error
    if root is None:
        raise ConfigError("the file is empty", place=name, hint="Start from one of the examples in config/")
    return _Reader(name, environ).read(root)


class _Reader:
    """Turns composed nodes into data."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._scalars = SafeConstructor()
        self._open: list[Node] = []
        self._document = Document(name, None, {}, [])

    def read(self, root: Node) -> Document:
        self._document.data = self._value(root, ())
        return self._document

    def _value(self, node: Node, path: Path) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if node in self._open:
            self._problem(node, path, "this alias stands inside its own anchor", "Write the value out")
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

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        self._refuse_duplicates(node, path)
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            try:
                self._scalars.flatten_mapping(node)
            except yaml.MarkedYAMLError as error:
                self._problem(node, path, f"`<<` cannot be merged: {error.problem}", "Merge an anchor of a mapping")
        found: dict[str, Any] = {}
        for key, value in node.value:
            # Keys are text here whatever YAML takes them for: a cluster may be called 1 or no.
            inner = (*path, str(key.value))
            self._document.lines[inner] = key.start_mark.line + 1
            found[str(key.value)] = self._value(value, inner)
        return found

    def _refuse_duplicates(self, node: MappingNode, path: Path) -> None:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self._problem(key, path, "a key must be a word", "Write the mapping as KEY: VALUE")
            elif key.value in first:
                problem = f"this key is already given in line {first[key.value]}"
                self._problem(key, (*path, key.value), problem, "Remove one of them")
            else:
                first[key.value] = line

    def _scalar(self, node: Node, path: Path) -> Any:
        if node.tag == _TEXT_TAG:
            return _VARIABLE.sub(lambda found: self._variable(found, node, path), node.value)
        try:
            return self._scalars.construct_object(node)
        except (yaml.MarkedYAMLError, ValueError) as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
            self._problem(node, path, f"this value cannot be read: {reason}", "Put quotes around it if it is text")
            return None

    def _variable(self, found: re.Match[str], node: Node, path: Path) -> str:
        name, default = found["name"], found["default"]
        if found["wrong"]:
            problem = f"{found['wrong']!r} is not a variable"
            self._problem(node, path, problem, "Write ${NAME} or ${NAME:-default}, and $${ for a plain ${")
        if not name:
            return found[0].removeprefix("$")
        value = self._environ.get(name)
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            self._problem(
                node, path, f"the environment variable {name} is not set", f"Set it, or give a default: ${{{name}:-default}}"
            )
        return value or ""

    def _problem(self, node: Node, path: Path, problem: str, hint: str) -> None:
        location = f"{self._document.name}:{node.start_mark.line + 1}"
        self._document.errors.append(ConfigError(problem, place=location, path=format_path(path), hint=hint))
