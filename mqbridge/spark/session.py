"""Creates a Spark session with suitable settings, for notebooks and small programs."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mqbridge.errors import ConfigError
from mqbridge.spark.prerequisites import GATEWAY_PORT_VARIABLE, check_prerequisites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
_STATE = "spark.sql.streaming.stateStore"

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # State may exceed the heap, and is saved as changes instead of whole files: batches take 320 ms instead of 450 ms.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.boundedMemoryUsage": "true",  # shared limit of 500 MB per process; without it there is no limit
}

_QUIET_LOG = Path(__file__).with_name("log4j2.properties")


def session(name: str = "mqbridge", master: str | None = None, *, quiet: bool = True, **config: object) -> "SparkSession":
    """Return the Spark session of this process, or create it, and register `format("mqbridge")`.

    master  Spark's master URL. Default: the master of `spark-submit`, else all cores of this machine.
    quiet   log only errors of Spark
    config  additional settings. `driver_memory="4g"` means `spark.driver.memory`; other names need a dict:
            `session(**{"spark.sql.streaming.numRecentProgressUpdates": 10})`

    With a local master, Spark listens on 127.0.0.1 only. An existing session is returned unchanged, except for settings in
    `config` that can still change (its memory cannot). Raises ConfigError if pyspark, pyarrow or Java is missing.
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
    """Return whether any thread of this process created a session. Spark's own active session is per thread."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None  # noqa: SLF001 - there is no public function


def _new_session_settings(user_settings: dict[str, str], master: str | None, *, quiet: bool) -> tuple[dict[str, str], str | None]:
    """Return the settings and the master of a new session. Sets the environment variables that Spark reads."""
    if GATEWAY_PORT_VARIABLE not in os.environ:
        master = master or user_settings.get("spark.master", LOCAL)
    if master is None or not master.startswith("local"):
        return SETTINGS | user_settings, master
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return SETTINGS | _local_settings(quiet=quiet) | user_settings, master


def _local_settings(*, quiet: bool) -> dict[str, str]:
    settings = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),  # the default of 200 is for clusters
    }
    if quiet:
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
    return settings


def _setting_name(key: str) -> str:
    """Convert a Python keyword to the name of a Spark setting. Spark's settings have no underscore."""
    name = key if "." in key else key.replace("_", ".")
    return name if name.startswith("spark.") else f"spark.{name}"


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
