"""Loads a `Config` from a YAML file, or reports all its problems at once.

Five passes find problems: `document` reads the YAML and its variables, `system_options` validates the options of the systems,
`cross_checks` and `listener_checks` compare option groups with each other, and the model `Config` validates the options of the
gateway. If these find none, `topic_graph` looks for routes that would read what they write, and `topic_names` for names that a
system does not accept.
Every problem has its line, its path and, if possible, the nearest valid word.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.cross_checks import cross_check
from mqbridge.config.document import Document, compose
from mqbridge.config.listened_systems import ListenedSystem, load_listened_systems
from mqbridge.config.listener_checks import listener_errors
from mqbridge.config.options.config import Config
from mqbridge.config.problems import ConfigErrors
from mqbridge.config.system_options import SystemOptions
from mqbridge.config.topic_graph import loop_errors
from mqbridge.config.topic_names import topic_name_errors
from mqbridge.config.validation_errors import explain
from mqbridge.errors import ConfigError

MAX_FILE_BYTES = 8 << 20
"""Maximum size of a configuration file: of a larger file, only this part is read into memory."""


def load(
    path: Path,
    *,
    environ: Mapping[str, str] | None = None,
    adapters: Mapping[str, Adapter] | None = None,
    servers: Mapping[str, ListenedSystem] | None = None,
) -> Config:
    """Load a file. Raises ConfigErrors with every problem, or ConfigError if the file cannot be read, or is not YAML.

    `environ` has the variables (default: those of the process), `adapters` the systems, and `servers` those whose clients a
    listener can serve (default: all that are installed).
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise ConfigError(
            f"the configuration cannot be read: {error.strerror}", location=str(path), hint="Check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text (byte {error.start})", location=str(path)) from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"the file is larger than {MAX_FILE_BYTES} bytes; it cannot be a configuration", location=str(path))
    return parse(text, str(path), environ=environ, adapters=adapters, servers=servers)


def parse(
    text: str,
    name: str,
    *,
    environ: Mapping[str, str] | None = None,
    adapters: Mapping[str, Adapter] | None = None,
    servers: Mapping[str, ListenedSystem] | None = None,
) -> Config:
    """Parse a YAML text; `name` is the name of its file in problems.

    Raises ConfigErrors with every problem, or ConfigError if the text is not YAML.
    """
    return _validate(compose(text, name, os.environ if environ is None else environ), adapters, servers)


def from_dict(
    data: Mapping[str, Any],
    *,
    adapters: Mapping[str, Adapter] | None = None,
    servers: Mapping[str, ListenedSystem] | None = None,
) -> Config:
    """Make a configuration from plain data; variables in it are not substituted. Raises ConfigErrors.

    A cluster may also be a ClusterConfig.
    """
    return _validate(Document(name="", data=data, lines={}, errors=[]), adapters, servers)


def wants_json_log(path: Path) -> bool:
    """Return True if the file sets `log.format: json`, even if options are invalid: the problems are then logged as JSON too.

    False for a file that cannot be read, or is not YAML.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode(errors="ignore")  # the limit may cut a character
        data = compose(text, str(path), os.environ).data
        return bool(data["log"]["format"] == "json")
    except (OSError, ValueError, LookupError, TypeError, ConfigError):
        return False


def _validate(document: Document, adapters: Mapping[str, Adapter] | None, servers: Mapping[str, ListenedSystem] | None) -> Config:
    """Run the second to fifth pass. Raises ConfigErrors with the problems of all passes, including those in `document`."""
    adapters = load_adapters() if adapters is None else adapters
    servers = load_listened_systems() if servers is None else servers
    systems = SystemOptions(document, adapters)
    data = systems.with_models()
    errors = document.errors + systems.errors + cross_check(document, adapters)
    errors += listener_errors(document, servers)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        errors += explain(document, error, Config.model_json_schema())
        raise ConfigErrors(_sort_errors(errors)) from None  # pydantic's own text shows the values, also secrets
    errors = errors or [*loop_errors(document, config), *topic_name_errors(document, config)]
    if errors:
        raise ConfigErrors(_sort_errors(errors))
    return config


def _sort_errors(errors: list[ConfigError]) -> list[ConfigError]:
    """Return the errors in the order of their lines, and only the first one of each path."""

    def line(error: ConfigError) -> int:
        """Return the line in the error's location; 0 without one."""
        number = error.location.rpartition(":")[2]
        return int(number) if number.isdigit() else 0

    # Keep only the first problem of each path: the others often follow from a bad variable or template.
    first: dict[tuple[str, str], ConfigError] = {}
    for error in errors:
        first.setdefault((error.location, error.path), error)
    return sorted(first.values(), key=line)
