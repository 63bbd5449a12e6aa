"""The real clusters that tests share: each kind is started once per process, when the first test asks for a kind of its group.

`pytest -n 2` gives all tests of a group to one process, so that each kind also starts once per run, see `scheduling.py`. A test
that stops or kills a server makes a cluster of its own: `with TubeMQ(pool={1: 1}) as cluster: ...`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from tests.kit.clusters import Cluster, running
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_settings import OLD_VERSION
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import LockedTubeMQ

REAL_SERVER_MARKERS = ("cluster", "sdk", "spark")


class Kind(NamedTuple):
    """A kind of cluster. Kinds of one group are often used by the same test."""

    group: str
    make: Callable[[], Cluster]


KINDS = {
    "tubemq": Kind("open", TubeMQ),
    "pulsar": Kind("open", Pulsar),
    "rocketmq": Kind("open", RocketMQ),
    "tubemq_locked": Kind("locked", LockedTubeMQ),
    "pulsar_locked": Kind("locked", LockedPulsar),
    "rocketmq_locked": Kind("locked", partial(RocketMQ, locked=True)),
    "rocketmq_old": Kind("old", partial(RocketMQ, version=OLD_VERSION)),
    "rocketmq_old_locked": Kind("locked", partial(RocketMQ, version=OLD_VERSION, locked=True)),
}
GROUPS = ("open", "locked", "old", "spark")
"""All groups. A test that uses several belongs to the first of them; `spark` is the Spark session that tests share."""
OWN = "own"
"""The group of tests that start servers of their own, which any process can run."""


def kinds_of(item: pytest.Item) -> set[str]:
    """Return the kinds that a test uses, by its fixtures or by a parameter that begins with the name of a kind."""
    used = KINDS.keys() & set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    if callspec is not None and uses_real_servers(item):
        for value in callspec.params.values():
            if isinstance(value, str) and (names := [name for name in KINDS if value.startswith(name)]):
                used.add(max(names, key=len))
    return used


def group_of(item: pytest.Item) -> str | None:
    """Return the group of a test, None for a test without real servers."""
    used = {KINDS[kind].group for kind in kinds_of(item)}
    if "spark" in getattr(item, "fixturenames", ()):
        used.add("spark")
    return next((group for group in GROUPS if group in used), OWN if uses_real_servers(item) else None)


def uses_real_servers(item: pytest.Item) -> bool:
    """Return True if a test uses real servers, official clients or Spark."""
    return any(item.get_closest_marker(name) for name in REAL_SERVER_MARKERS)


class Clusters:
    """The shared clusters of a process, each with the future of its start. `needed`: the kinds that the selected tests use."""

    def __init__(self, stack: ExitStack, needed: set[str]) -> None:
        self._stack, self._needed = stack, needed
        self._launched: dict[str, tuple[Cluster, Future[None]]] = {}

    def _launch(self, name: str) -> None:
        """Start a cluster in the background, once."""
        if name not in self._launched:
            cluster = KINDS[name].make()
            (ready,) = self._stack.enter_context(running([cluster]))
            self._launched[name] = cluster, ready

    def ready(self, name: str) -> Cluster:
        """Wait for a cluster; start it first, and at the same time the others of its group that are needed.

        Raises ClusterError if the cluster could not be started; the next call starts it again.
        """
        self._launch(name)
        for other, kind in KINDS.items():
            if other in self._needed and kind.group == KINDS[name].group:
                self._launch(other)
        cluster, ready = self._launched[name]
        try:
            ready.result()
        except BaseException:
            del self._launched[name]
            raise
        return cluster
