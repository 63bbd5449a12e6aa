"""Creates a Spark session with suitable settings, for notebooks and small programs."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mqbridge.errors import ConfigError
from mqbridge.spark.prerequisites import GATEWAY_PORT_VARIABLE, check_prerequisites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
"""Spark's master URL for all cores of this machine."""
LOOPBACK = "127.0.0.1"
"""Where Spark listens with a local master."""
_STATE_STORE = "spark.sql.streaming.stateStore"

DEFAULT_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # With RocksDB, the state of a query may be larger than the JVM's heap. With changelog checkpointing, a batch saves only the
    # changes of the state instead of whole files: batches with state take 320 ms instead of 450 ms.
    f"{_STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE_STORE}.rocksdb.boundedMemoryUsage": "true",  # all stores of a process share 500 MB; with false there is no limit
}

_QUIET_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


def session(name: str = "mqbridge", master: str | None = None, *, quiet: bool = True, **config: object) -> "SparkSession":
    """Return the Spark session of this process, or create it, and register `format("mqbridge")`.

    name    the name of the application in Spark's UI
    master  Spark's master URL. Default: the master of `spark-submit`, else all cores of this machine.
    quiet   True: Spark logs only errors; False: Spark logs as it is configured
    config  additional settings. `driver_memory="4g"` means `spark.driver.memory`; settings with their full names need a dict:
            `session(**{"spark.sql.streaming.numRecentProgressUpdates": 10})`

    With a local master that `spark-submit` did not choose, Spark listens on 127.0.0.1 only. In an existing session, only the log
    level (`quiet`) and the settings in `config` that can still change (not its memory) are changed.

    Raises ConfigError if pyspark, pyarrow or Java is missing.
    """
    is_new = not session_exists()
    if is_new:
        check_prerequisites()
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only after the check that pyspark exists
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from mqbridge.spark.data_source import MqbridgeDataSource  # noqa: PLC0415

    settings = {_setting_name(key): _setting_text(value) for key, value in config.items()}
    if is_new:
        settings, master = _new_session_settings(settings, master, quiet=quiet)
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    try:
        spark = builder.getOrCreate()
    except PySparkException as error:
        raise ConfigError(f"Spark cannot be started: {error}") from error
    if quiet:
        spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MqbridgeDataSource)
    return spark


def session_exists() -> bool:
    """Return whether any thread of this process created a session. Spark's `getActiveSession` knows only the calling thread's."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None  # noqa: SLF001 - there is no public function


def _new_session_settings(user_settings: dict[str, str], master: str | None, *, quiet: bool) -> tuple[dict[str, str], str | None]:
    """Return the settings and the master of a new session. For a local master, also set the environment variables of Spark."""
    if GATEWAY_PORT_VARIABLE not in os.environ:  # no `spark-submit`, which would have chosen the master
        master = master or user_settings.get("spark.master", LOCAL_MASTER)
    if master is None or not master.startswith("local"):
        return DEFAULT_SETTINGS | user_settings, master
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return DEFAULT_SETTINGS | _local_settings(quiet=quiet) | user_settings, master


def _local_settings(*, quiet: bool) -> dict[str, str]:
    settings = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),  # the default of 200 is for clusters
    }
    if quiet:
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET_LOG_CONFIG.as_uri()}"
    return settings


def _setting_name(key: str) -> str:
    """Convert a Python keyword to the name of a Spark setting. Names of Spark settings contain no underscore."""
    name = key if "." in key else key.replace("_", ".")
    return name if name.startswith("spark.") else f"spark.{name}"


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
