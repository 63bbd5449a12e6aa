"""How the examples start: python word_count.py URL CHECKPOINT, with a cluster (log:///tmp/topics) and a folder for state."""

import sys
from collections.abc import Mapping
from typing import Any

from mqbridge.spark.streams import StreamConfig, StreamJob, Topology


def run(topology: Topology, properties: Mapping[str, Any]) -> None:
    """Run it until Ctrl-C. A third argument is the trigger: availableNow ends behind the last message."""
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
