"""Every row of the page about switches of administrators is tested, and every tested switch has a row."""

import re
from pathlib import Path

from tests.e2e import test_frozen_pulsar, test_frozen_rocketmq, test_frozen_tubemq

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "switches.md"
TESTED_ELSEWHERE = {
    "access control": "tests/e2e/test_frozen_rocketmq.py",
    "deleted topic": "tests/e2e/test_topics_made_anew.py",
    "permission": "tests/e2e/test_frozen_pulsar.py",
    "quota evicts": "tests/pulsar/test_real_rollover.py",
    "publish rate limit": "tests/e2e/test_frozen_pulsar.py",
    "unloaded namespace, split bundle": "tests/e2e/test_frozen_pulsar.py",
    "terminated": "tests/e2e/test_frozen_pulsar.py",
    "flow control": "tests/tubemq/test_real_consuming.py",
    "credentials": "tests/tubemq/test_real_locked.py",
}


def test_every_switch_is_tested() -> None:
    switches = [
        *test_frozen_rocketmq.SWITCHES,
        *test_frozen_pulsar.RUNNING,
        *test_frozen_pulsar.STARTING,
        *test_frozen_tubemq.STARTING,
    ]
    rows = re.findall(r"^\| ([^|*`(]+?) (?:\([^|]*\) )?\| (?:source|target|both) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert set(rows) == {switch.name for switch in switches} | TESTED_ELSEWHERE.keys()
