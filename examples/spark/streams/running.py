"""Start an example: python word_count.py URL CHECKPOINT [TRIGGER].

URL names the cluster, such as log:///tmp/topics. CHECKPOINT is a folder for state and progress.
"""

import sys
from collections.abc import Mapping
from typing import Any

from mqbridge.spark.streams import StreamConfig, StreamJob, Topology


def run(topology: Topology, properties: Mapping[str, Any]) -> None:
    """Run the topology until Ctrl-C. With the trigger availableNow, stop after the available messages."""
    if len(sys.argv) < 3:
        sys.exit(f"usage: python {sys.argv[0]} URL CHECKPOINT [TRIGGER]")
    url, checkpoint, *trigger = sys.argv[1:]
    settings = {**properties, "url": url, StreamConfig.CHECKPOINT_LOCATION: checkpoint}
    if trigger:
        settings[StreamConfig.TRIGGER] = trigger[0]
    job = StreamJob(topology, settings)
    job.start()
    try:
        job.awaitTermination()
    finally:
        job.stop()
