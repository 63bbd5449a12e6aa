"""Reads a YAML text as plain data, with the line of every key and list item.

PyYAML composes the text to nodes, which have lines, and this module converts the nodes. Duplicate keys are rejected, because YAML
would silently drop one of their values. `${NAME}`, also `${env:NAME}`, and `${file:PATH}` are substituted inside texts after
parsing; each may have a `:-default`, which also replaces an empty value. A substituted value is always text and never changes the
structure. It may be a secret, so errors show the variable in its place.
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
"""The keys and list indexes that lead to a value: `("routes", 0, "to")`; the whole file has the empty path."""

_VARIABLE = re.compile(
    r"\$\$\{"  # an escaped ${
    r"|\$\{(?:(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)|file:(?P<file>[^{}:]+))"
    r"(?P<default>:-(?:[^{}]|\{[^{}]*\})*)?\}"  # the default may contain {topic}
    r"|(?P<invalid>\$\{[^}]*\}?)"
)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TEXT_TAG = "tag:yaml.org,2002:str"

HALF_CHARACTER, HALF_CHARACTER_HINT = "this text has half of a character", r"Remove the escapes from \ud800 to \udfff"
"""The error about a text that cannot be encoded."""
MIN_HIDDEN_CHARS = 6
"""Errors hide substituted values of at least this length. Shorter ones are hardly secrets, and occur in other texts by chance."""
MAX_VALUE_BYTES = 64 << 10
"""Maximum size of a file that `${file:PATH}` substitutes."""
MAX_VALUES = 100_000
"""Maximum number of values of a document. A file of a few lines may have billions: an alias stands for all that its anchor
contains, and may be used in another anchor."""
MAX_DEPTH = 50
"""Maximum number of lists and mappings around a value. PyYAML calls itself for each, and Python's own limit may be any."""


class Document:
    """The data of one configuration, the line of each key and item (from 1), and the problems found while reading it."""

    def __init__(self, name: str, data: Any, lines: dict[KeyPath, int], errors: list[ConfigError]) -> None:
        self.name, self.data = name, data
        self.lines, self.errors = lines, errors
        self.variables: dict[str, str] = {}
        """Texts that `hide_values` replaces, and their variables: `{"s3cret": "${PASSWORD}"}`."""

    def location(self, path: KeyPath) -> str:
        """Return the file and line of a path as `file.yaml:12`; for a missing key, the line of its nearest parent in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name

    def error(self, path: KeyPath, problem: str, hint: str = "") -> ConfigError:
        """Make an error at this path, with substituted values hidden."""
        return ConfigError(
            self.hide_values(problem), location=self.location(path), path=format_path(path), hint=self.hide_values(hint)
        )

    def hide_values(self, text: str) -> str:
        """Replace substituted values in a text by their variables."""
        for value in sorted(self.variables, key=len, reverse=True):  # the longest first: a value may contain another
            text = text.replace(value, self.variables[value])
        return text


def format_path(path: KeyPath) -> str:
    """Format a path as `routes[0].to.topic`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def compose(text: str, name: str, environ: Mapping[str, str]) -> Document:
    """Read a YAML text.

    Raises ConfigError for a syntax error or an empty file; other problems are in the document's `errors`. `name` is the name of
    the file in errors.
    """
    try:
        return _read_root(_Loader(text, name).get_single_node(), name, environ)
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


class _Loader(yaml.SafeLoader):
    """Refuses values inside too many others."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._name, self._depth = name, 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose the next node and all that it contains."""
        if self._depth > MAX_DEPTH:
            problem = f"lists and mappings are nested too deeply, above {MAX_DEPTH} levels"
            raise ConfigError(problem, location=f"{self._name}:{self.line + 1}", hint="Remove levels")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _read_root(root: Node | None, name: str, environ: Mapping[str, str]) -> Document:
    if root is None:
        raise ConfigError("the file is empty", location=name, hint="Begin with an example: `mqbridge example` lists them")
    return _Reader(name, environ).read(root)


class _Reader:
    """Converts composed nodes to data."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._constructor = SafeConstructor()
        self._ancestors: list[Node] = []
        """The mappings and lists that contain the current node, and the node itself."""
        self._document = Document(name, None, {}, [])
        self._values_left = MAX_VALUES

    def read(self, root: Node) -> Document:
        """Convert the root node and return the document."""
        self._document.data = self._value(root, ())
        return self._document

    def _value(self, node: Node, path: KeyPath) -> Any:
        """Convert a node and record its line; None for a node that contains itself, and for an unreadable value."""
        self._count(1, node)
        self._document.lines.setdefault(path, node.start_mark.line + 1)  # in a mapping, the line of the key is already there
        if node in self._ancestors:
            self._report(node, path, "this alias refers to an anchor that contains it", "Write the value instead of the alias")
            return None
        self._ancestors.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._ancestors.pop()

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        """Convert a mapping, with `<<` merged, and record the lines of its keys."""
        self._check_keys(node, path)
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            self._count(_merged_size(node, {}), node)
            try:
                self._constructor.flatten_mapping(node)
            except yaml.MarkedYAMLError as error:
                self._report(node, path, f"`<<` cannot be merged: {error.problem}", "Let `<<` refer to the anchor of a mapping")
        data: dict[str, Any] = {}
        for key, value in node.value:
            # Keys are always text, whatever type YAML gives them: a cluster may be called 1 or no.
            value_path = (*path, str(key.value))
            self._document.lines[value_path] = key.start_mark.line + 1
            data[str(key.value)] = self._value(value, value_path)
        return data

    def _count(self, values: int, node: Node) -> None:
        """Count values before they are made. Raises ConfigError if the document has more than MAX_VALUES."""
        self._values_left -= values
        if self._values_left < 0:
            raise ConfigError(
                f"the file has more than {MAX_VALUES} values, with those that aliases stand for",
                location=f"{self._document.name}:{node.start_mark.line + 1}",
                hint="Use fewer aliases inside of anchors",
            )

    def _check_keys(self, node: MappingNode, path: KeyPath) -> None:
        """Report keys that are not scalars, and keys that occur twice."""
        first_lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self._report(key, path, "a key must be a text, not a list or a mapping", "Write KEY: VALUE")
            elif not _is_text(key.value):
                self._report(key, path, HALF_CHARACTER, HALF_CHARACTER_HINT)
            elif key.value in first_lines:
                problem = f"this key is already on line {first_lines[key.value]}"
                self._report(key, (*path, key.value), problem, "Remove one of them")
            else:
                first_lines[key.value] = line

    def _scalar(self, node: Node, path: KeyPath) -> Any:
        """Convert a scalar; variables are substituted in texts."""
        if node.tag == _TEXT_TAG:
            if not _is_text(node.value):
                self._report(node, path, HALF_CHARACTER, HALF_CHARACTER_HINT)
                return None
            return _VARIABLE.sub(lambda match: self._substitute(match, node, path), node.value)
        try:
            return self._constructor.construct_object(node)
        except (yaml.MarkedYAMLError, ValueError) as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
            self._report(node, path, f"this value cannot be read: {reason}", "Put quotes around it if it is text")
            return None

    def _substitute(self, match: re.Match[str], node: Node, path: KeyPath) -> str:
        """Return the value of a variable, or `${` for the escape `$${`. Reports a variable that is invalid or has no value."""
        name, default = match["name"], match["default"]
        if match["invalid"]:
            problem = f"{match['invalid']!r} is not a variable"
            self._report(node, path, problem, "Write ${NAME} or ${NAME:-default}, ${file:PATH}, and $${ for a plain ${")
        if not name and not match["file"]:
            return match[0].removeprefix("$")  # `$${` without its first `$`; an invalid variable is reported above
        value, reason = self._read_variable(name) if name else _read_value(match["file"])
        if value:
            self._hide(value, name or f"file:{match['file']}")
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            source, remedy = ("environment variable", "Set it") if name else ("file", "Create or correct it")
            key = name or f"file:{match['file']}"
            problem = f"the {source} {name or match['file']} {reason}"
            self._report(node, path, problem, f"{remedy}, or give a default: ${{{key}:-default}}")
        return value or ""

    def _read_variable(self, name: str) -> tuple[str | None, str]:
        """Return the value of an environment variable and ""; if there is no text, None and the reason."""
        value = self._environ.get(name)
        if value is None:
            return None, "is not set"
        return (value, "") if _is_text(value) else (None, "is not UTF-8 text")

    def _hide(self, value: str, variable: str) -> None:
        """Let errors show `${variable}` in place of this value, unless the value is shorter than MIN_HIDDEN_CHARS."""
        if len(value) >= MIN_HIDDEN_CHARS:
            for shown in (value, repr(value)[1:-1]):  # errors show many values as repr() writes them
                self._document.variables[shown] = f"${{{variable}}}"

    def _report(self, node: Node, path: KeyPath, problem: str, hint: str) -> None:
        """Add an error at the line of the node."""
        location = f"{self._document.name}:{node.start_mark.line + 1}"
        self._document.errors.append(ConfigError(problem, location=location, path=format_path(path), hint=hint))


def _merged_size(node: Node, sizes: dict[int, int]) -> int:
    """Return the number of keys of a mapping after its merges (`<<`), of which some may be equal.

    `sizes` has those of other mappings by id. A mapping that merges itself counts as empty inside of itself.
    """
    if id(node) in sizes:
        return sizes[id(node)]
    sizes[id(node)] = 0
    if isinstance(node, SequenceNode):  # a list of mappings to merge
        size = sum(_merged_size(item, sizes) for item in node.value)
    elif isinstance(node, MappingNode):
        size = sum(_merged_size(value, sizes) if key.tag == _MERGE_TAG else 1 for key, value in node.value)
    else:
        size = 0
    sizes[id(node)] = size
    return size


def _is_text(value: str) -> bool:
    """Return True if the text can be encoded: it has no lone surrogate, of an escape or of a byte that is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_value(path: str) -> tuple[str | None, str]:
    """Return a file's text without trailing white space and ""; if it cannot be read, None and the reason."""
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
