"""Checks that this machine can start Spark: pyspark, pyarrow and Java."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mqbridge.errors import ConfigError

MIN_JAVA = 17
"""The oldest Java version that Spark 4 supports."""
GATEWAY_PORT_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""Environment variable that `spark-submit` sets for its program. If it is set, Spark's JVM runs already: no Java is started."""


def check_prerequisites() -> None:
    """Raise ConfigError, with what to install, if this machine cannot start Spark."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} cannot be imported", hint="pip install 'mqbridge[spark]'")
    if GATEWAY_PORT_VARIABLE not in os.environ:
        check_java(find_java(os.environ))


def find_java(environ: Mapping[str, str]) -> Path:
    """Return the Java program that Spark's scripts start. Raises ConfigError."""
    home = environ.get("JAVA_HOME")
    if home and (java := Path(home, "bin", "java")).exists():
        return java
    if not home and (program := shutil.which("java", path=environ.get("PATH"))):
        return Path(program)
    problem = f"JAVA_HOME ({home}) contains no bin/java" if home else "there is no java on the PATH"
    raise ConfigError(f"Spark needs Java, but {problem}", hint=_install_hint())


def check_java(java: Path) -> None:
    """Raise ConfigError if this Java does not run or is too old."""
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - found above
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"Spark needs Java, but {java} does not run: {error}", hint=_install_hint()) from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', process.stderr + process.stdout)
    if match is None:
        return  # an unusual Java: Spark itself will say whether it can use it
    version = int(match[2] if match[1] == "1" and match[2] else match[1])  # before Java 9, version 8 was called 1.8
    if version < MIN_JAVA:
        raise ConfigError(f"Spark needs Java {MIN_JAVA} or newer, but {java} is Java {version}", hint=_install_hint())


def _install_hint() -> str:
    return f"Install Java {MIN_JAVA} (apt install openjdk-{MIN_JAVA}-jre-headless, or https://adoptium.net), or set JAVA_HOME"
