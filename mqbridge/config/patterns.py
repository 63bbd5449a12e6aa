"""Regular expressions in options. A pattern always has to match the whole name or text, not a part of it.

In an option for names (topics, properties), `~PATTERN` is a regular expression, and any other text is an exact name. In an
option for a pattern, the expression has no `~`.
"""

import functools
import re
from typing import Annotated

from mqbridge.config.base import Name, checked_by
from mqbridge.errors import ConfigError
from mqbridge.wire.bounded_pattern import Ambiguous, BoundedPattern

__all__ = [
    "BoundedPattern",
    "NameOrPattern",
    "TextPattern",
    "compile_name_pattern",
    "compile_text_pattern",
    "is_pattern",
    "topic_words",
]

REGEX_PREFIX = "~"
MAX_COMPILED = 256
"""Number of expressions that are kept compiled."""


_compiled = functools.lru_cache(maxsize=MAX_COMPILED)(BoundedPattern)
"""Compiles an expression; a route uses few, many times."""


def is_pattern(name: str) -> bool:
    """Return True for `~PATTERN`, False for an exact name."""
    return name.startswith(REGEX_PREFIX)


def compile_name_pattern(name: str) -> BoundedPattern:
    """Compile the expression after the `~`. Raises ConfigError that says where the syntax error is."""
    return _compile(name, name.removeprefix(REGEX_PREFIX), "names, for example ~orders_(?P<region>.+)")


def compile_text_pattern(pattern: str) -> BoundedPattern:
    """Compile an expression that has no `~`. Raises ConfigError that says where the syntax error is."""
    return _compile(pattern, pattern, "texts, for example eu-.*")


def topic_words(name_or_pattern: str, topic: str) -> dict[str, str] | None:
    """Return the words that a topic template may use for a topic, if the name or the pattern selects it; otherwise None.

    These are `topic`, and for a pattern its named groups, "" for a group that is no part of the match.
    """
    if not is_pattern(name_or_pattern):
        return {"topic": topic} if name_or_pattern == topic else None
    match = compile_name_pattern(name_or_pattern).fullmatch(topic)
    return None if match is None else {**{key: value or "" for key, value in match.groupdict().items()}, "topic": topic}


def _compile(text: str, expression: str, matches: str) -> BoundedPattern:
    """Compile `expression`. An error shows `text`, the option as written; `matches` completes its hint."""
    try:
        return _compiled(expression)
    except Ambiguous as error:
        raise ConfigError(
            f"the pattern {text!r} could take longer than anybody waits: {error}",
            hint="Write it so that each text can be read in one way: a+ for (a+)+, or (?:a++)+, which gives nothing back",
        ) from None
    except re.error as error:
        # Counted from 1 in `text`, which may begin with a `~` that the expression lacks.
        position = f" at character {len(text) - len(expression) + error.pos + 1}" if error.pos is not None else ""
        raise ConfigError(
            f"the pattern {text!r} does not compile: {error.msg}{position}",
            hint=f"Patterns are Python regular expressions and match whole {matches}",
        ) from error


def _check_name_or_pattern(name: str) -> None:
    if is_pattern(name):
        compile_name_pattern(name)


NameOrPattern = Annotated[Name, checked_by(_check_name_or_pattern)]
"""The type of an option for names: an exact name, or `~PATTERN`."""
TextPattern = Annotated[Name, checked_by(compile_text_pattern)]
"""The type of an option for a pattern: a regular expression without `~`."""
