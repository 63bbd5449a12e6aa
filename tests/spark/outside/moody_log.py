"""An adapter of another package: the embedded log, but bounds are in random order, and a file records the requests for them.

The folder of this file is on the path of Spark's Python processes, which find the adapter by the entry point in this folder.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mqbridge.adapter.topics import Bounds
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.registration import ADAPTER as LOG
from mqbridge.log.store.settings import LogSettings


class MoodySettings(LogSettings):
    """The settings of the log, and a file that gets a line for each request."""

    request_file: Path


class MoodyCluster(LogCluster):
    """The log, with bounds in random order."""

    def __init__(self, name: str, config: MoodySettings) -> None:
        super().__init__(name, config)
        self._request_file = config.request_file

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Record the request, and return the bounds in random order."""
        with self._request_file.open("a") as file:
            file.write("bounds\n")
        items = list((await super().bounds(topic)).items())
        random.shuffle(items)
        return dict(items)


ADAPTER = replace(LOG, system="moody", cluster_model=MoodySettings, make_cluster=MoodyCluster)
