"""A real Kafka broker on loopback with temporary data, and Spark's Kafka connector: the baseline of the Spark benchmark.

Controller and broker are one process without ZooKeeper. mqbridge itself does not use Kafka. The broker is ready when its metadata
lists a broker, so that clients find leaders of topics. A topic is created on first use.
"""

from __future__ import annotations

import base64
import shutil
import socket
import struct
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.kit.guard import guard
from tests.kit.maven import cached, copy_dependencies, java
from tests.kit.process import HOST, ClusterError, JavaProcess, free_ports
from tests.kit.started import Started

# The version of the client in Spark's connector, so that neither side has to convert formats.
VERSION = "3.9.2"
POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqbridge</groupId><artifactId>kafka-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""
# The newest version on Maven Central for pyspark 4.3.0, which loads it. Spark ships all its other dependencies.
CONNECTOR_VERSION = "4.2.0"
CONNECTOR = ["spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"]
CONNECTOR_CLIENTS = {"org.apache.kafka:kafka-clients": VERSION, "org.apache.commons:commons-pool2": "2.13.1"}
CONF, LOG4J = "server.properties", "log4j.properties"
LOG4J_PROPERTIES = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""
METADATA, METADATA_VERSION = 3, 1
PROBE_TIMEOUT_S = 5.0


def server_jars() -> Path:
    """Return the folder with the broker's jars; download them if they are missing (46 MB, about 5 s)."""
    return cached(f"kafka-server-{VERSION}", lambda into: copy_dependencies(POM, into))


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector, for `spark.jars`; download them if they are missing (10 MB, about 5 s)."""
    return sorted(cached(f"spark-kafka-{CONNECTOR_VERSION}", _fetch_connector).glob("*.jar"))


def _fetch_connector(into: Path) -> None:
    jars = {f"org.apache.spark:{name}": CONNECTOR_VERSION for name in CONNECTOR} | CONNECTOR_CLIENTS
    copy_dependencies(
        f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqbridge</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{"".join(_alone(*name.split(":"), version) for name, version in jars.items())}</dependencies>
</project>
""",
        into,
    )


def _alone(group: str, artifact: str, version: str) -> str:
    names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    none = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    return f"<dependency>{names}{none}</dependency>\n"


class Kafka(Started):
    """One broker; `start()` and `kill()`, or `with`. `server` is its JavaProcess; new topics have `partitions` partitions."""

    def __init__(self, *, partitions: int = 4, heap_mb: int = 512) -> None:
        jars = server_jars()
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-kafka-"))
        guard().folder(self.folder)
        self.port, controller = free_ports(2)
        (self.folder / LOG4J).write_text(LOG4J_PROPERTIES)
        (self.folder / CONF).write_text(server_properties(self.port, controller, self.folder / "data", partitions))
        self._program = [
            str(java()), "-Xms64m", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", f"-Dlog4j.configuration=file:{self.folder / LOG4J}",
            "-cp", f"{jars}/*",
        ]  # fmt: skip
        self.server = JavaProcess("kafka", [*self._program, "kafka.Kafka", CONF], self.folder, self._ready)

    @property
    def servers(self) -> list[JavaProcess]:
        """The processes of the cluster."""
        return [self.server]

    @property
    def bootstrap_servers(self) -> str:
        """Address of the broker for clients."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Format the storage if it is new, start the broker, and wait until it is ready."""
        if not (self.folder / "data").exists():
            self._format()
        self.server.start()

    def kill(self) -> None:
        """Kill the broker and remove the data."""
        self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        argv = [*self._program, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={CONF}"]
        run = subprocess.run(
            argv,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise ClusterError(f"the storage of Kafka could not be formatted:\n{run.stdout}")

    def _ready(self) -> bool:
        """Return True if the response to a Metadata request lists a broker."""
        request = struct.pack(">hhihi", METADATA, METADATA_VERSION, 1, -1, 0)
        with socket.create_connection((HOST, self.port), timeout=PROBE_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(12)
        return len(answer) == 12 and struct.unpack(">iii", answer)[2] > 0


def server_properties(port: int, controller_port: int, data: Path, partitions: int) -> str:
    """Return the text of the broker's configuration."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "num.partitions": partitions,
        # There is only one broker.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        # By default, the first member of a group waits for 3 s.
        "group.initial.rebalance.delay.ms": 0,
        "log.retention.hours": -1,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
