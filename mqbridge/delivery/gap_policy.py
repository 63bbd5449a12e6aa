"""Decides what a lane does at a gap (messages that its source has lost): skip it or stop, as `on_gap` says."""

import logging

from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import GapError
from mqbridge.message import Partition, Position, format_position

log = logging.getLogger(__name__)


class GapPolicy:
    """The gap policy of a route, for one lane."""

    def __init__(self, partition: Partition, settings: LaneSettings) -> None:
        self._partition, self._settings = partition, settings
        self._skipped_to: Position | None = None
        """Position after the last gap that was counted."""

    def skip(self, gap: GapError) -> Position:
        """Count the gap and return the position after it.

        Raises `gap` itself if the route does not skip gaps, or if the position after it is unknown.
        """
        resume = gap.resume
        if not self._settings.skip_gaps or resume is None:
            raise gap
        # Count a gap once, even if it is found twice: by comparison with the checkpoint when the partition is assigned, and then
        # by the source.
        if resume != self._skipped_to:
            self._skipped_to = resume
            self._settings.counters.gaps += 1
            log.warning(
                "partition %s continues at position %s without the lost messages: %s",
                self._partition,
                format_position(resume),
                gap,
            )
        return resume
