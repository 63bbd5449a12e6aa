"""A standalone Spark cluster from the pyspark package: a master and workers on loopback, one core and 1 GB each.

Executors are children of their worker. Killing a worker also kills its executors, as if the machine failed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kit.guard import guard, kill_session, members
from tests.kit.process import HOST, JavaProcess, free_ports
from tests.kit.spark import LOG4J, environment
from tests.kit.started import Started
from tests.kit.web import call

DAEMON_MB = 256
WORKER_CORES = 1
WORKER_MEMORY = "1g"


class SparkCluster(Started):
    """A master and workers; `start()` and `kill()`, or `with`. Drivers use `master_url` as their master."""

    def __init__(self, workers: int = 2) -> None:
        import pyspark

        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-spark-"))
        guard().folder(self.folder)
        (self.folder / "log4j2.properties").write_text(LOG4J)
        self._spark_class = str(Path(pyspark.__file__).with_name("bin") / "spark-class")
        port, self._web_port, *worker_ports = free_ports(2 + workers)
        self.master_url = f"spark://{HOST}:{port}"
        self.master = self._daemon("master", "master.Master", port, "--webui-port", str(self._web_port), ready=self._master_ready)
        self.workers = [self._worker(number, port) for number, port in enumerate(worker_ports)]

    @property
    def servers(self) -> list[JavaProcess]:
        """The processes of the cluster, without executors."""
        return [self.master, *self.workers]

    def start(self) -> None:
        """Start the master, then the workers, and wait until they are registered."""
        for server in self.servers:
            server.start(wait=server is self.master)
            guard().session(server.pid)
        for worker in self.workers:
            worker.wait_ready()

    def kill(self) -> None:
        """Kill all processes, including executors, and remove their files."""
        for server in self.servers:
            _kill_all(server)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_worker(self, number: int = 0) -> None:
        """Kill a worker with its executors and their Python processes."""
        _kill_all(self.workers[number])

    def start_worker(self, number: int = 0) -> None:
        """Start a killed worker again, and wait until it is registered."""
        self.workers[number].start()
        guard().session(self.workers[number].pid)

    def executors(self, number: int) -> int:
        """Return the number of executors on a worker."""
        return sum(b"CoarseGrainedExecutorBackend" in _command(pid) for pid in members(self.workers[number].pid))

    def _worker(self, number: int, port: int) -> JavaProcess:
        work = self.folder / f"work-{number}"
        options = ["--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY, "--work-dir", str(work), "--webui-port", "0"]
        return self._daemon(
            f"worker-{number}", "worker.Worker", port, *options, self.master_url, ready=lambda: port in self._alive()
        )

    def _daemon(self, name: str, program: str, port: int, *options: str, ready: Callable[[], bool]) -> JavaProcess:
        scratch = self.folder / f"scratch-{name}"
        scratch.mkdir()
        variables = environment() | {
            "SPARK_DAEMON_MEMORY": f"{DAEMON_MB}m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "SPARK_LOCAL_DIRS": str(scratch),
            "TZ": "UTC",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }
        argv = [
            "env", *(f"{key}={value}" for key, value in variables.items()),
            self._spark_class, f"org.apache.spark.deploy.{program}", "--host", HOST, "--port", str(port), *options,
        ]  # fmt: skip
        return JavaProcess(name, argv, self.folder, ready)

    def _master_ready(self) -> bool:
        return call(f"http://{HOST}:{self._web_port}/json/")[0] == 200

    def _alive(self) -> set[int]:
        """Return the ports of the registered workers that the master considers alive."""
        status, text = call(f"http://{HOST}:{self._web_port}/json/")
        return (
            {worker["port"] for worker in json.loads(text)["workers"] if worker["state"] == "ALIVE"} if status == 200 else set()
        )


def _kill_all(server: JavaProcess) -> None:
    if server.running:
        server.kill()
        kill_session(server.pid)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
