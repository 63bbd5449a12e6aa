"""The Spark session of a mirror, and what has to be on this machine for one."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 17
"""The oldest that Spark 4 runs on."""
LOCAL = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""In the environment of a program that `spark-submit` has started: its JVM is there already, and knows its master."""

DEFAULTS = {
    "spark.app.name": "mqbridge mirror",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # routes share the cluster instead of waiting for each other
    "spark.sql.session.timeZone": "UTC",
}


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


def make_session(master: str | None, conf: Mapping[str, str], *, quiet: bool = True) -> "SparkSession":
    """A session; with `quiet` Spark's own log shows errors only. Raises ConfigError."""
    check_prerequisites()
    from pyspark.errors import PySparkException  # noqa: PLC0415 - not before it is known to be there
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in (DEFAULTS | dict(conf)).items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master)
    elif SUBMITTED not in os.environ and "spark.master" not in conf:
        builder = builder.master(LOCAL)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        raise ConfigError(f"Spark cannot be started: {error}") from error
    if quiet:
        session.sparkContext.setLogLevel("ERROR")
    return session
