"""The file of profiles. A profile is a cluster that the user names on the command line instead of a URL.

The file has the format of a configuration, but belongs to the user and not to a gateway.
"""

import os
from pathlib import Path

PROFILES_VARIABLE = "MQBRIDGE_PROFILES"
"""The environment variable that sets the path of the file of profiles."""


def profiles_file() -> Path:
    """Return the path of the file of profiles, which may not exist."""
    if path := os.environ.get(PROFILES_VARIABLE):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "mqbridge" / "clusters.yaml"
