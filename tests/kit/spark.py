"""Runs Spark of the pyspark package for tests: a session in this process (`SparkJvm`), or a program (`SparkProgram`).

A pyspark driver consists of two processes, Python and a JVM, and executors have further Python workers. All processes of a
`SparkProgram` are in one session of the kernel, so the guard can find and kill them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.kit.guard import guard, kill_session, members
from tests.kit.maven import cache_folder, java
from tests.kit.process import HOST, LESS_COMPILING

if TYPE_CHECKING:
    from py4j.clientserver import ClientServer
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

REPOSITORY = Path(__file__).resolve().parents[2]
OUTSIDE = REPOSITORY / "tests" / "spark" / "outside"
"""Folder of a third-party adapter, which Spark's Python processes can import."""
MASTER = "local[2]"
HEAP = "1g"
QUERY_DEADLINE_S = 400.0
"""Deadline of a query. A query takes seconds, but minutes if ten processes share the two cores."""
END_S = 30.0
POLL_S = 0.05
LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


class SparkError(Exception):
    """A program or query failed or did not end in time. The text has its name and the end of its log."""


def spark_home() -> Path:
    """Return a Spark home whose Python workers import the installed pyspark package.

    In the home that pyspark brings, workers import `python/lib/pyspark.zip`, which has no compiled modules: each worker
    compiles pyspark again, for 0.65 s of CPU time (0.84 s instead of 0.19 s for a worker that keeps state). Spark waits
    ten seconds for a worker to connect, a limit without a setting, and a busy machine exceeded it.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    home = cache_folder() / f"spark-home-{sha256(str(package).encode()).hexdigest()[:12]}"
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        with contextlib.suppress(FileExistsError):
            (home / name).symlink_to(package / name)
    return home


def environment(java_options: Sequence[str] = LESS_COMPILING) -> dict[str, str]:
    """Return the environment of Spark's processes: paths of Spark, Java, this interpreter, the checkout's modules, JVM options.

    With LESS_COMPILING, some aggregations and streams of a few rows take 38 s of CPU time instead of 68 s.
    """
    paths = [str(REPOSITORY), str(OUTSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": str(java().resolve().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_SUBMIT_OPTS": " ".join(java_options),
    }


def settings(folder: Path, master: str = MASTER) -> dict[str, str]:
    """Return the settings of a small test session, which uses loopback and writes to `folder` only."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    flags = f"-Duser.timezone=UTC -Dlog4j2.configurationFile={log4j} -Djava.io.tmpdir={scratch} -Dderby.system.home={scratch}"
    state = "spark.sql.streaming.stateStore"
    return {
        "spark.master": master,
        "spark.app.name": "mqbridge tests",
        "spark.driver.memory": HEAP,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.extraJavaOptions": flags,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.TZ": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        f"{state}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
    }


class SparkJvm:
    """A Spark session in this process, and its JVM. A context manager closes both; the guard does so if this process dies."""

    def __init__(
        self, folder: Path, extra: Mapping[str, str] | None = None, java_options: Sequence[str] = LESS_COMPILING
    ) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        self.log = folder / "spark.log"
        os.environ.update(environment(java_options))
        conf = SparkConf(loadDefaults=False).setAll(list((settings(folder) | dict(extra or {})).items()))
        with self.log.open("ab") as log:
            self._gateway: ClientServer = launch_gateway(conf, {"stdout": log, "stderr": log})
        self._process: subprocess.Popen[bytes] = self._gateway.proc
        guard().process(self._process.pid)
        self.session: SparkSession = SparkSession(SparkContext(conf=conf, gateway=self._gateway))

    def close(self) -> None:
        """Stop the session and its JVM; kill the JVM if it does not exit."""
        from pyspark import SparkContext

        self.session.stop()
        self._gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def activate(session: SparkSession) -> None:
    """Make this the active session of the thread. Without one, Spark does not find Python data sources for writing."""
    jvm: Any = session._jvm
    jvm.SparkSession.setActiveSession(session._jsparkSession)


def run_available(writer: DataStreamWriter, checkpoint: Path, deadline_s: float = QUERY_DEADLINE_S) -> list[dict[str, Any]]:
    """Run a query with the available messages, wait for its end, and return its progress reports.

    A second run with the same checkpoint resumes where the first one ended.
    """
    activate(writer._spark)
    return finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(), deadline_s)


def finish(query: StreamingQuery, deadline_s: float = QUERY_DEADLINE_S) -> list[dict[str, Any]]:
    """Wait for a query to end and return its progress reports. Raises the query's error, or SparkError at the timeout."""
    try:
        if not query.awaitTermination(deadline_s):
            raise SparkError(f"the query {query.id} did not end within {deadline_s:g} s; it is {query.status}")
    finally:
        if query.isActive:
            query.stop()
    return [json.loads(report.json) for report in query.recentProgress]


def collect_stream(frame: DataFrame, checkpoint: Path, name: str, output_mode: str = "append") -> list[Any]:
    """Return the rows of a streaming DataFrame for the available messages. The memory sink does not survive a restart."""
    writer = frame.writeStream.format("memory").queryName(name).outputMode(output_mode)
    run_available(writer, checkpoint)
    return frame.sparkSession.table(name).collect()


class SparkProgram:
    """A Python program that uses Spark, as a child process. A context manager kills it at the end.

    `argv` are the arguments of the Python interpreter. The program creates its Spark session with
    `session_from_environment`, or like a program of a user.
    """

    def __init__(self, folder: Path, *argv: str, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._log = folder / "program.log"
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=REPOSITORY, env={**os.environ, **environment(), SETTINGS: str(folder), **(env or {})},
            )  # fmt: skip
        guard().session(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id of the driver's Python."""
        return self._process.pid

    @property
    def log(self) -> str:
        """The output of the program, its JVM and its workers since the start."""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    @property
    def running(self) -> bool:
        """True if the Python process of the driver runs."""
        return self._process.poll() is None

    def wait(self, deadline_s: float = QUERY_DEADLINE_S) -> str:
        """Wait for the end and return the log. Raises SparkError if the program fails, or exceeds the deadline and is killed."""
        try:
            status = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise SparkError(f"the program did not end within {deadline_s:g} s:\n{self.log[-8000:]}") from None
        if status != 0:
            raise SparkError(f"the program ended with status {status}:\n{self.log[-8000:]}")
        return self.log

    def terminate(self) -> None:
        """Send SIGTERM to the Python process of the driver."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the Python process and the JVM of the driver. Wait until the workers have exited, too."""
        for pid in _drivers(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + END_S
        while members(self._process.pid) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        kill_session(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


SETTINGS = "MQBRIDGE_TEST_SPARK"
"""Environment variable of a SparkProgram: the folder for the files of its Spark session."""


def session_from_environment(master: str = MASTER, **extra: str) -> SparkSession:
    """Return a Spark session with the settings of tests. Call this inside a SparkProgram."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in (settings(Path(os.environ[SETTINGS]), master) | extra).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _drivers(leader: int) -> list[int]:
    """Return the leader of a kernel session and its JVMs, without Python workers."""
    return [pid for pid in members(leader) if pid == leader or _is_java(pid)]


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False
