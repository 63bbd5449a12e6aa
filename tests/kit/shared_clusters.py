"""The real clusters that tests share: each kind is started once per process, when a test asks for it.

`pytest -n 2` gives all tests of a group to one process, see `scheduling.py`. So a kind also starts once per run, but for TubeMQ
and RocketMQ, which start in seconds: tests that use only one of them are groups of their own, or one process would have most of
the work. A test that stops or kills a server makes a cluster of its own: `with TubeMQ(pool={1: 1}) as cluster: ...`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from tests.kit.clusters import Cluster
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
ALONE = ("rocketmq", "tubemq")
"""Kinds whose tests are a group of their own if they use no other kind."""
GROUPS = ("open", "locked", "old", "spark", *ALONE)
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
    kinds = kinds_of(item)
    used = {kind if kinds == {kind} and kind in ALONE else KINDS[kind].group for kind in kinds}
    if "spark" in getattr(item, "fixturenames", ()):
        used.add("spark")
    return next((group for group in GROUPS if group in used), OWN if uses_real_servers(item) else None)


def uses_real_servers(item: pytest.Item) -> bool:
    """Return True if a test uses real servers, official clients or Spark."""
    return any(item.get_closest_marker(name) for name in REAL_SERVER_MARKERS)


class Clusters:
    """The shared clusters of a process. `stack` kills them at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Cluster] = {}

    def ready(self, name: str) -> Cluster:
        """Start a cluster, once. Raises ClusterError if it could not be started; the next call then starts another one."""
        if name not in self._started:
            cluster = KINDS[name].make()
            self._stack.callback(cluster.kill)
            cluster.start()
            self._started[name] = cluster
        return self._started[name]
