"""An adapter from outside: the embedded log, which answers in any order and writes down what it is asked.

The folder of this file is on the path of Spark's Python processes, where the entry point beside it is found.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mqbridge.adapter.topics import Bounds
from mqbridge.log.adapter import ADAPTER as LOG
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings


class MoodySettings(LogSettings):
    """Of the log, and a file for the names of questions, a line each."""

    asked: Path


class MoodyCluster(LogCluster):
    """The log, with moods."""

    def __init__(self, name: str, config: MoodySettings) -> None:
        super().__init__(name, config)
        self._asked = config.asked

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Those of the log, shuffled."""
        with self._asked.open("a") as file:
            file.write("bounds\n")
        found = list((await super().bounds(topic)).items())
        random.shuffle(found)
        return dict(found)


ADAPTER = replace(LOG, system="moody", cluster_model=MoodySettings, make_cluster=MoodyCluster)
