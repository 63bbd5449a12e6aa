"""Profiles: clusters of the user's own configuration, named on the command line instead of a URL."""

import os
from pathlib import Path

PROFILES = "MQBRIDGE_PROFILES"
"""The environment variable with the path of the user's own configuration."""


def profiles_file() -> Path:
    """Return the path of the user's own configuration, which may not exist."""
    if given := os.environ.get(PROFILES):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "mqbridge" / "clusters.yaml"
