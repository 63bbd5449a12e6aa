"""What has to be on this machine before Spark can be started."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mqbridge.errors import ConfigError

JAVA = 17
"""The oldest that Spark 4 runs on."""
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""In the environment of a program that `spark-submit` has started: its JVM is there already, and knows its master."""


def check_prerequisites() -> None:
    """Raise ConfigError when Spark cannot be started here, with what to install."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} cannot be imported", hint="pip install 'mqbridge[spark]'")
    if SUBMITTED not in os.environ:
        check_java(find_java(os.environ))


def find_java(environ: Mapping[str, str]) -> Path:
    """The Java that Spark's scripts would start. Raises ConfigError."""
    home = environ.get("JAVA_HOME")
    if home and (java := Path(home, "bin", "java")).exists():
        return java
    if not home and (found := shutil.which("java", path=environ.get("PATH"))):
        return Path(found)
    where = f"JAVA_HOME is {home}, where there is none" if home else "there is none on the PATH"
    raise ConfigError(f"Spark needs Java, and {where}", hint=_install())


def check_java(java: Path) -> None:
    """Raise ConfigError when it is too old."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - found above
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"Spark needs Java, and {java} does not run: {error}", hint=_install()) from error
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    version = int(found[2] if found[1] == "1" and found[2] else found[1]) if found else JAVA
    if version < JAVA:
        raise ConfigError(f"Spark needs Java {JAVA} or newer, and {java} is Java {version}", hint=_install())


def _install() -> str:
    return f"Install Java {JAVA} (apt install openjdk-{JAVA}-jre-headless, or https://adoptium.net), or set JAVA_HOME to it"
