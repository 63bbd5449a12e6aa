"""The file of profiles: clusters of the user's own configuration, used on the command line by name instead of a URL."""

import os
from pathlib import Path

PROFILES_VARIABLE = "MQBRIDGE_PROFILES"
"""The environment variable that sets the path of the user's own configuration."""


def profiles_file() -> Path:
    """Return the path of the user's own configuration; the file may not exist."""
    if path := os.environ.get(PROFILES_VARIABLE):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "mqbridge" / "clusters.yaml"
