"""The configurations that every installation contains, for `mqbridge example`; in a checkout they are in `mqbridge/shipped`."""

from importlib.resources import files

from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError

_FOLDER = files("mqbridge") / "shipped"
_SUFFIX = ".yaml"


def shipped_configurations() -> dict[str, str]:
    """Return the text of each shipped configuration by name, such as `tubemq-to-pulsar`, sorted."""
    found = [entry for entry in _FOLDER.iterdir() if entry.name.endswith(_SUFFIX)]
    return {entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8") for entry in sorted(found, key=lambda entry: entry.name)}


def shipped_configuration(name: str) -> str:
    """Return the text of one shipped configuration.

    Raises ConfigError, with the nearest name, if there is none with this name.
    """
    known = shipped_configurations()
    if name not in known:
        raise ConfigError(f"there is no example {name!r}", hint=nearest(name, known))
    return known[name]


def summary(text: str) -> str:
    """Return what a shipped configuration does: its first line, a comment."""
    return text.partition("\n")[0].removeprefix("#").strip()
