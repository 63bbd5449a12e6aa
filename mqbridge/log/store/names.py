"""Names of topics and groups of a log."""

import re

from mqbridge.adapter.names import NameRule
from mqbridge.errors import ConfigError

MAX_NAME_BYTES = 1024
"""Maximum length of a name in UTF-8: names stand in several tables, and in the keys of their indexes."""


def name_problem(name: str) -> str | None:
    """Return why a topic or group cannot have this name; None if it can."""
    if not name:
        return "it is empty"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it has characters that are not valid Unicode (surrogates)"
    if size > MAX_NAME_BYTES:
        return f"it has {size} bytes"
    return "it has a null character" if "\0" in name else None


def check_name(kind: str, name: str) -> None:
    """Raise ConfigError if a topic or group (`kind`) cannot have this name."""
    if (problem := name_problem(name)) is not None:
        raise ConfigError(
            f"{name[:80]!a} cannot be the name of a {kind} of the log: {problem}",
            hint=f"Give it 1 to {MAX_NAME_BYTES} bytes of text",
        )


class _Utf8NameRule(NameRule):
    """The rule of `name_problem`, which limits the bytes of a name and not its characters."""

    def problem(self, name: str) -> str | None:
        """Return why a name is invalid; None if it is valid."""
        return name_problem(name)


_VALID = re.compile(r"[^\0\ud800-\udfff]")
NAME_RULE = _Utf8NameRule(_VALID, _VALID, MAX_NAME_BYTES, f"1 to {MAX_NAME_BYTES} bytes of text are accepted")
"""The rule for topics and groups."""
