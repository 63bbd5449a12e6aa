"""A Spark session with good settings, for notebooks and small programs."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mqbridge.errors import ConfigError
from mqbridge.spark.prerequisites import SUBMITTED, check_prerequisites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
_STATE = "spark.sql.streaming.stateStore"

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # State that need not fit the heap, saved as changes instead of as whole files: batches of 320 ms instead of 450 ms.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.boundedMemoryUsage": "true",  # by all instances of a process; 500 MB, and without it there is no bound
}

_QUIET_LOG = Path(__file__).with_name("log4j2.properties")


def session(name: str = "mqbridge", master: str | None = None, *, quiet: bool = True, **config: object) -> "SparkSession":
    """The Spark session of this process, made if there is none, which knows `format("mqbridge")`.

    master  Spark's master URL. Default: what `spark-submit` was given, else all cores of this machine.
    quiet   only errors of Spark are logged
    config  further settings. `driver_memory="4g"` is `spark.driver.memory`, and a dict works too:
            `session(**{"spark.sql.streaming.numRecentProgressUpdates": 10})`

    With a local master nothing listens on other addresses than 127.0.0.1. A session that exists is given back as it is, but for
    the `config` that can still change (its memory cannot). Raises ConfigError when pyspark, pyarrow or Java are missing.
    """
    is_new = not session_exists()
    if is_new:
        check_prerequisites()
    from pyspark.errors import PySparkException  # noqa: PLC0415 - not before it is known to be there
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from mqbridge.spark.data_source import MqbridgeDataSource  # noqa: PLC0415

    settings = {_setting(key): _value(value) for key, value in config.items()}
    if is_new:
        settings, master = _first_settings(settings, master, quiet=quiet)
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
    """Whether this process has a session, whichever thread has made it: that is what Spark calls active in one thread only."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None  # noqa: SLF001 - nothing public says it


def _first_settings(given: dict[str, str], master: str | None, *, quiet: bool) -> tuple[dict[str, str], str | None]:
    """Settings and master of a session that is made now. Says in the environment what Spark asks there."""
    if SUBMITTED not in os.environ:
        master = master or given.get("spark.master", LOCAL)
    if master is None or not master.startswith("local"):
        return SETTINGS | given, master
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return SETTINGS | _local_settings(quiet=quiet) | given, master


def _local_settings(*, quiet: bool) -> dict[str, str]:
    found = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),  # 200 are for clusters
    }
    if quiet:
        found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
    return found


def _setting(key: str) -> str:
    """Python's spelling of a setting, as Spark has it: no setting of Spark has an underscore."""
    name = key if "." in key else key.replace("_", ".")
    return name if name.startswith("spark.") else f"spark.{name}"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
