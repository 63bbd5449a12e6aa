"""Names of topics and groups of a log."""

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
