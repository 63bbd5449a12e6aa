"""The real clusters for tests with the marker `cluster`: each is started once per run, on first use.

If the selected tests need several, the first that asks for one starts all of them side by side. A test that stops or kills
a server makes a cluster of its own: `with TubeMQ(pool={1: 1}) as cluster: ...`.

A test against real servers that fails is tried a second time: servers on a busy machine may refuse for a moment what no client
can help. A run allows five of these (`--max-suite-reruns`), and prints the first failure of each at its end. A test that is seen
there twice has a fault to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mqbridge import native
from tests.kit.clusters import Cluster, running
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_settings import OLD_VERSION
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import LockedTubeMQ

# A busy machine may make any example slow, so durations are not checked.
settings.register_profile("drawn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The examples are the same in each run, so that unrelated changes do not meet rare faults; `make test-thorough` draws others.
settings.register_profile("same", settings.get_profile("drawn"), derandomize=True)
settings.load_profile("same")

KINDS: dict[str, Callable[[], Cluster]] = {
    "tubemq": TubeMQ,
    "tubemq_locked": LockedTubeMQ,
    "pulsar": Pulsar,
    "pulsar_locked": LockedPulsar,
    "rocketmq": RocketMQ,
    "rocketmq_old": partial(RocketMQ, version=OLD_VERSION),
    "rocketmq_locked": partial(RocketMQ, locked=True),
    "rocketmq_old_locked": partial(RocketMQ, version=OLD_VERSION, locked=True),
}


def pytest_report_header() -> str:
    """Show whether the mappings use the compiled module or plain Python."""
    built = getattr(native.compiled, "__file__", None)
    sources = [path.stat().st_mtime for path in (Path(__file__).parents[1] / "native" / "src").rglob("*.rs")]
    is_old = built is not None and max(sources, default=0.0) > Path(built).stat().st_mtime
    return f"compiled module: {native.state}" + (", older than native/src: `make setup` builds it anew" if is_old else "")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Retry only tests against real servers, and Spark's, which allows a process ten seconds to respond."""
    if any(item.get_closest_marker(name) for name in ("cluster", "sdk", "spark")):
        item.add_marker(pytest.mark.flaky(reruns=1))


class Clusters:
    """The clusters of this run, each with the future of its start."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._launched: dict[str, tuple[Cluster, Future[None]]] = {}

    def launch(self, name: str) -> None:
        """Start a cluster in the background, once."""
        if name not in self._launched:
            cluster = KINDS[name]()
            (ready,) = self._stack.enter_context(running([cluster]))
            self._launched[name] = cluster, ready

    def ready(self, name: str) -> Cluster:
        """Wait for a cluster; raise ClusterError if it could not be started, and start it again at the next call."""
        self.launch(name)
        cluster, ready = self._launched[name]
        try:
            ready.result()
        except BaseException:
            del self._launched[name]
            raise
        return cluster


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """Start the clusters that the selected tests need."""
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ExitStack() as stack:
        clusters = Clusters(stack)
        for name in KINDS.keys() & needed:
            clusters.launch(name)
        yield clusters


@pytest.fixture(scope="session")
def tubemq(clusters: Clusters) -> TubeMQ:
    """A real Master and Broker, shared by the whole run; `tubemq.take_topic(partitions)` gives a fresh topic."""
    cluster = clusters.ready("tubemq")
    assert isinstance(cluster, TubeMQ)
    return cluster


@pytest.fixture(scope="session")
def tubemq_locked(clusters: Clusters) -> LockedTubeMQ:
    """A TubeMQ with TLS, authentication, and the check of visit tokens."""
    cluster = clusters.ready("tubemq_locked")
    assert isinstance(cluster, LockedTubeMQ)
    return cluster


@pytest.fixture(scope="session")
def pulsar(clusters: Clusters) -> Pulsar:
    """A real Pulsar standalone server, shared by the whole run; `pulsar.take_topic(partitions)` gives a fresh topic."""
    cluster = clusters.ready("pulsar")
    assert isinstance(cluster, Pulsar)
    return cluster


@pytest.fixture(scope="session")
def pulsar_locked(clusters: Clusters) -> LockedPulsar:
    """A Pulsar that requires TLS and credentials; `pulsar_locked.config(auth)` is a cluster's configuration."""
    cluster = clusters.ready("pulsar_locked")
    assert isinstance(cluster, LockedPulsar)
    return cluster


@pytest.fixture(scope="session")
def rocketmq_old(clusters: Clusters) -> RocketMQ:
    """A RocketMQ 4.9, the previous release line."""
    cluster = clusters.ready("rocketmq_old")
    assert isinstance(cluster, RocketMQ)
    return cluster


@pytest.fixture(scope="session")
def rocketmq(clusters: Clusters) -> RocketMQ:
    """A real name server and broker, shared by the whole run; `rocketmq.take_topic(queues)` gives a fresh topic."""
    cluster = clusters.ready("rocketmq")
    assert isinstance(cluster, RocketMQ)
    return cluster


@pytest.fixture(scope="session")
def rocketmq_locked(clusters: Clusters) -> RocketMQ:
    """A RocketMQ 5.3 that requires TLS, a certificate and a signature: access control 2.0."""
    cluster = clusters.ready("rocketmq_locked")
    assert isinstance(cluster, RocketMQ)
    return cluster


@pytest.fixture(scope="session")
def rocketmq_old_locked(clusters: Clusters) -> RocketMQ:
    """A RocketMQ 4.9 with the same protection: access control 1.0."""
    cluster = clusters.ready("rocketmq_old_locked")
    assert isinstance(cluster, RocketMQ)
    return cluster
