"""The Spark session of a mirror."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqbridge.errors import ConfigError
from mqbridge.spark.prerequisites import SUBMITTED, check_prerequisites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

DEFAULTS = {
    "spark.app.name": "mqbridge mirror",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # routes share the cluster instead of waiting for each other
    "spark.sql.session.timeZone": "UTC",
}


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
