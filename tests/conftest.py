"""Settings of all tests, and the real clusters of the tests with the marker `cluster`, see `kit/shared_clusters.py`.

A test against real servers that fails is tried a second time: servers on a busy machine may refuse for a moment what no client
can help. A run allows five of these (`--max-suite-reruns`), and prints the first failure of each at its end. A test that is seen
there twice has a fault to mend.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mqbridge import native
from tests.example_counts import FULL
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.scheduling import GroupScheduling, write_groups
from tests.kit.shared_clusters import Clusters, uses_real_servers
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import LockedTubeMQ

# A busy machine may make any example slow, so durations are not checked.
settings.register_profile("drawn", deadline=None, max_examples=FULL, suppress_health_check=[HealthCheck.too_slow])
# The examples are the same in each run, so that unrelated changes do not meet rare faults; `make test-thorough` draws others.
settings.register_profile("same", settings.get_profile("drawn"), max_examples=FULL // 10, derandomize=True)
settings.load_profile("same")


def pytest_report_header() -> str:
    """Show whether the mappings use the compiled module or plain Python."""
    built = getattr(native.compiled, "__file__", None)
    sources = [path.stat().st_mtime for path in (Path(__file__).parents[1] / "native" / "src").rglob("*.rs")]
    is_old = built is not None and max(sources, default=0.0) > Path(built).stat().st_mtime
    return f"compiled module: {native.state}" + (", older than native/src: `make setup` builds it anew" if is_old else "")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Retry only tests against real servers, and Spark's, which allows a process ten seconds to respond."""
    if uses_real_servers(item):
        item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell the main process which tests use the same clusters."""
    if hasattr(config, "workerinput"):  # one of several processes
        write_groups(items, config.workerinput["testrunuid"])


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore what collecting has made: some tests collect garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Run the tests that share clusters in the same process."""
    return GroupScheduling(config, log)


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """Start shared clusters when a test asks for them."""
    with ExitStack() as stack:
        yield Clusters(stack)


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
