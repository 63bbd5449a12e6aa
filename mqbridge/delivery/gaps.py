"""What a lane does about messages that its source has lost: it goes on behind them, or stops, as the route says."""

import logging

from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import GapError
from mqbridge.message import Partition, Position, format_position

log = logging.getLogger(__name__)


class GapRule:
    """The rule of a route, for one lane."""

    def __init__(self, partition: Partition, settings: LaneSettings) -> None:
        self._partition, self._settings = partition, settings
        self._passed_to: Position | None = None

    def pass_by(self, gap: GapError) -> Position:
        """Where to go on behind a gap, which is counted; raises it where the route does not want that, or nobody knows where."""
        resume = gap.resume
        if not self._settings.skip_gaps or resume is None:
            raise gap
        if resume != self._passed_to:  # else the checkpoint has shown it before the source does
            self._passed_to = resume
            self._settings.counters.gaps += 1
            log.warning("%s goes on at %s without what was lost: %s", self._partition, format_position(resume), gap)
        return resume
