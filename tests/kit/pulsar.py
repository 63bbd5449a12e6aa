"""A real Pulsar standalone, broker and bookie 4.0.8 in one process, on loopback with temporary data.

The server is ready when the broker's own health check succeeds, which writes and reads a message, and when the namespace
public/default exists, which is created last.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.guard import guard
from tests.kit.maven import cached, copy_dependencies, java
from tests.kit.process import HOST, LESS_COMPILING, ClusterError, JavaProcess, accepts, free_ports
from tests.kit.pulsar_settings import LOG4J, MAIN, VERSION, jvm, standalone_conf
from tests.kit.started import Started
from tests.kit.web import call

# The exclusion stops Maven from resolving dependencies that the archive contains, some of which are not published.
POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqbridge</groupId><artifactId>pulsar-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar-server-distribution</artifactId><version>{VERSION}</version>
    <type>tar.gz</type><classifier>bin</classifier>
    <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
  </dependency></dependencies>
</project>
"""
DEFAULT_NAMESPACE = "public/default"


def server_folder() -> Path:
    """Return the folder of the unpacked server; download it if it is missing (234 MiB, about 30 s)."""
    return cached(f"pulsar-{VERSION}", _fetch)


def _fetch(into: Path) -> None:
    packed = into.with_name("packed")
    copy_dependencies(POM, packed)
    with tarfile.open(next(packed.glob("*.tar.gz"))) as archive:
        archive.extractall(into.with_name("unpacked"), filter="data")
    (into.with_name("unpacked") / f"apache-pulsar-{VERSION}" / "lib").rename(into / "lib")


KEEPER = "judge"
"""Name of the subscription that keeps the messages of a topic until they are read: without a subscription the broker deletes
closed ledgers."""

PROXIED = "proxied"
"""Name of the advertised listener whose address is that of a proxy."""

SEND_TRIES = 3
"""A REST send may time out after a kill: on a busy machine one had no response for 30 s."""


class Pulsar(Started):
    """One standalone server; `start()` and `stop()`, or `with`. `server` is its JavaProcess.

    `settings` override those of tests/kit/pulsar_settings.py (names of standalone.conf). The server tells clients that ask for
    its listener PROXIED the address of the local port `proxied_port`, where the caller runs a proxy before the server. For large
    amounts of messages, `java_options` should not be LESS_COMPILING.
    """

    def __init__(
        self,
        settings: dict[str, object] | None = None,
        *,
        heap_mb: int = 512,
        java_options: Sequence[str] = LESS_COMPILING,
        proxied_port: int | None = None,
    ) -> None:
        self._numbers = itertools.count(1)
        jars = server_folder() / "lib"
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-pulsar-"))
        guard().folder(self.folder)
        self.port, self._web_port, bookie = free_ports(3)
        (self.folder / "log4j2.xml").write_text(LOG4J)
        settings = settings or {}
        if proxied_port is not None:
            listeners = f"direct:pulsar://{HOST}:{self.port},{PROXIED}:pulsar://{HOST}:{proxied_port}"
            settings = {"advertisedListeners": listeners, "internalListenerName": "direct", **settings}
        (self.folder / "standalone.conf").write_text(standalone_conf(self.port, self._web_port, settings))
        argv = [
            str(java()), *jvm(heap_mb), *java_options, "-cp", f"{self.folder}:{jars}/*",
            MAIN, "--config", "standalone.conf", "--no-functions-worker", "--no-stream-storage",
            "--advertised-address", HOST, "--metadata-dir", "metadata", "--bookkeeper-dir", "bookkeeper",
            "--bookkeeper-port", str(bookie),
        ]  # fmt: skip
        self.server = JavaProcess("pulsar", argv, self.folder, self._ready)

    @property
    def servers(self) -> list[JavaProcess]:
        """The processes of the cluster."""
        return [self.server]

    @property
    def service_url(self) -> str:
        """Service URL for clients."""
        return f"pulsar://{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Base of the admin REST API; `admin` appends /admin/v2."""
        return f"http://{HOST}:{self._web_port}"

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self.server.start()

    def stop(self) -> None:
        """Stop the server and remove its data."""
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server and remove its data. This is faster than `stop`."""
        self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self) -> None:
        """Stop the server with SIGTERM, and start it again with the same ports and data."""
        self.server.restart()

    def restart_broker(self, away_s: float = 0.0) -> None:
        """Restart the server in order, as an upgrade does: the broker closes its topics before it ends."""
        self.server.restart_in_order(away_s)

    def create_topic(self, name: str, partitions: int = 0, *, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Create a topic, partitioned if `partitions` is not 0; return its full name."""
        path = f"persistent/{namespace}/{name}"
        if partitions:
            self.admin("PUT", f"{path}/partitions", partitions)
        else:
            self.admin("PUT", path)
        return f"persistent://{namespace}/{name}"

    def take_topic(self, partitions: int = 0) -> str:
        """Create a new topic and return its full name."""
        return self.create_topic(f"topic_{partitions}p_{next(self._numbers):03}", partitions)

    def keep(self, topic: str) -> str:
        """Create the subscription KEEPER of an existing topic (full name), so that it keeps its messages; return the name.

        Without subscription and retention a broker deletes closed ledgers. Rollover, unload and restart close ledgers.
        """
        path = f"{topic.replace('://', '/')}/subscription/{KEEPER}"
        self.admin("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
        return topic

    def create_namespace(self, tenant: str, namespace: str) -> str:
        """Create a namespace, and its tenant if it is missing; return `tenant/namespace`."""
        if tenant not in self.admin("GET", "tenants"):
            self.admin("PUT", f"tenants/{tenant}", {"allowedClusters": ["standalone"], "adminRoles": []})
        self.admin("PUT", f"namespaces/{tenant}/{namespace}")
        return f"{tenant}/{namespace}"

    def send(self, topic: str, text: str) -> str:
        """Store one message in an existing topic (full name) by REST; return the message id as formatted by the server.

        A request that times out is repeated, so the message may be stored twice.
        """
        schema = {"name": "", "schema": "", "type": "STRING", "properties": {}}
        body = {"valueSchema": json.dumps(schema), "producerName": "tests", "messages": [{"payload": text}]}
        path = f"/topics/{topic.replace('://', '/')}"
        for _ in range(SEND_TRIES - 1):
            try:
                response = self._call("POST", path, body)
                break
            except TimeoutError:
                continue
        else:
            response = self._call("POST", path, body)
        result = response["messagePublishResults"][0]
        if result.get("errorCode"):
            raise ClusterError(f"Pulsar rejected a message for {topic}: {result}")
        return str(result["messageId"])

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call the admin REST API with a path below /admin/v2; return the parsed response, or None if it is empty."""
        return self._call(method, f"/admin/v2/{path}", body)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        status, text = call(f"{self.admin_url}{path}", method=method, body=body)
        if status >= 300:
            raise ClusterError(f"Pulsar answered {method} {path} with HTTP {status}: {text[:500]}")
        return json.loads(text) if text else None

    def _ready(self) -> bool:
        if not accepts(self._web_port):
            return False
        healthy = call(f"{self.admin_url}/admin/v2/brokers/health") == (200, "ok")
        return healthy and DEFAULT_NAMESPACE in call(f"{self.admin_url}/admin/v2/namespaces/public")[1]
