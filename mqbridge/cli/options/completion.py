"""Values that the shell completes: profiles, clusters, topics and systems.

A completion connects to nothing and imports little. An unreadable file completes nothing.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

from mqbridge.config.profiles import profiles_file

ADAPTERS_GROUP, LISTENERS_GROUP = "mqbridge.adapters", "mqbridge.listeners"
"""The entry point groups of adapters and listeners. The registries are not used here, because they would import more."""
MAX_FILE_BYTES = 1 << 20
"""Larger files are not read: parsing them would delay the prompt."""


def profiles(incomplete: str) -> list[str]:
    """Return the user's own clusters (profiles) and the URL schemes of the systems, those that begin with this text."""
    names = [*_mapping(_read_yaml(profiles_file()), "clusters"), *(f"{system}://" for system in _systems())]
    return [name for name in names if name.startswith(incomplete)]


def listened_systems(incomplete: str) -> list[str]:
    """Return the systems whose clients a listener can serve, those that begin with this text."""
    return sorted(entry.name for entry in entry_points(group=LISTENERS_GROUP) if entry.name.startswith(incomplete))


def clusters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the clusters of the configuration that `--config` names."""
    return [name for name in _mapping(_config(ctx), "clusters") if name.startswith(incomplete)]


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the source topics of the routes in `--config`, except patterns; with `--cluster` only those in that cluster."""
    routes, cluster = _config(ctx).get("routes"), ctx.params.get("cluster")
    names: set[str] = set()
    for route in routes if isinstance(routes, list) else []:
        source = _mapping(route, "from")
        if cluster is None or source.get("cluster") == cluster:
            listed = source.get("topics")
            names |= {str(name) for name in [source.get("topic"), *(listed if isinstance(listed, list) else [])] if name}
    return sorted(name for name in names if name.startswith(incomplete) and not name.startswith("~"))  # `~` begins a pattern


def systems_and_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics of `--config`, followed by the systems."""
    return topics(ctx, incomplete) + [name for name in _systems() if name.startswith(incomplete)]


def _systems() -> list[str]:
    """Return the names of the installed systems, except the one that only tests use."""
    return sorted({entry_point.name for entry_point in entry_points(group=ADAPTERS_GROUP)} - {"memory"})


def _config(ctx: typer.Context) -> dict[str, Any]:
    """Return the plain data of the file that `--config` names, empty without it."""
    file = ctx.params.get("config")
    return {} if file is None else _read_yaml(Path(file))


def _read_yaml(file: Path) -> dict[str, Any]:
    """Return the file as plain data, empty if it cannot be read. Nothing is checked, and `${…}` is not substituted."""
    import yaml

    try:
        if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
            return {}
        data = yaml.safe_load(file.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return data if isinstance(data, dict) else {}


def _mapping(data: Any, key: str) -> dict[str, Any]:
    """Return the mapping under this key, with names as text; empty if there is none."""
    value = data.get(key) if isinstance(data, dict) else None
    return {str(name): item for name, item in value.items()} if isinstance(value, dict) else {}
