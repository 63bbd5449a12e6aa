"""The examples of RIP-58 in Python: each one runs over its topics and yields the expected output."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.streams.jobs import FileJob, Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).parents[4] / "examples" / "spark" / "streams"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "running")
CONCURRENT_JOBS = 5
"""The number of jobs that run at the same time."""


def load_example(name: str) -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(f"rip58_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def json_messages(*items: tuple[Any, float]) -> list[Message]:
    """Return messages with these values as JSON, at these times in seconds after EPOCH."""
    return [(json.dumps(value).encode(), time) for value, time in items]


WORDS = [(b"To be or not to be", 0.0), (b"be, BE", 1.0), (b"end", 60.0)]
NUMBERS = json_messages((4, 0.0), (7, 3.0), (-1, 4.0), (6, 6.5), (0, 7.0), (1, 60.0))
USERS = json_messages(
    ({"name": "ann", "age": 3, "timestamp": 1704067200500}, 0.0),
    ({"name": "bob", "age": 0, "timestamp": 1704067201000}, 1.0),
    ({"name": "ann", "age": 3, "timestamp": 1704067203000}, 2.0),
    ({"name": "cid", "age": 5, "timestamp": 1704067207000}, 3.0),
    ({"name": "eve", "age": 1, "timestamp": 1704067290000}, 90.0),
)
NUMS = json_messages(({"name": "ann", "num": 10}, 3.0), ({"name": "cid", "num": 30}, 40.0), ({"name": "eve", "num": 1}, 91.0))
GRADES = json_messages(
    ({"grade": "A", "score": 71.5, "name": "x"}, 0.0),
    ({"grade": "A", "score": 70, "name": "y"}, 4.0),
    ({"grade": "A", "score": 70, "name": "z"}, 1.0),
    ({"grade": "B", "score": 90, "name": "w"}, 6.0),
    ({"grade": "A", "score": 1, "name": "end"}, 60.0),
)
ORDERS = json_messages(
    ({"customer": "ann", "type": "food", "price": 2}, 1.0),
    ({"customer": "ann", "type": "food", "price": 3.5}, 12.0),
    ({"customer": "bob", "type": "drink", "price": 4}, 2.0),
    ({"customer": "ann", "type": "food", "price": 1}, 400.0),
)
TOPICS = {
    "sourceTopic": WORDS,
    "avgSource": NUMBERS,
    "windowCount": NUMBERS,
    "user": USERS,
    "num": NUMS,
    "grade": GRADES,
    "order": ORDERS,
}


def line(key: Any, value: Any) -> str:
    """Return the line that `print()` of a stream yields for an element."""
    return f"(key: {key}, data: {value})"


COUNTS = [line("be", 4), line("end", 1), line("not", 1), line("or", 1), line("to", 2)]
ANN, BOB, CID, EVE = [json.loads(payload) for payload, _ in (USERS[2], USERS[1], USERS[3], USERS[4])]
EXPECTED = {
    "word_count": COUNTS,
    "word_count_from_first_offset": COUNTS,
    "window_word_count": [line("be", 4), line("not", 1), line("or", 1), line("to", 2)],
    "window_count": [line(3, 2), line(5, 1)],
    "window_avg": [line("key", 5.5), line("key", 6.0)],
    "window_min": [line("A", {"grade": "A", "score": 70, "name": "z"}), line("B", {"grade": "B", "score": 90, "name": "w"})],
    "window_sum": [line("ann", 6), line("cid", 5)],
    "slide_window_count": [line("key", count) for count in (1, 1, 1, 1, 2, 2)],
    "session_window_count": [line("key", 3)],
    "window_order_count": [
        *[line("ann@food", 5.5), line("bob@drink", 4)],
        *[line("drink", 1)] * 3, *[line("food", 1), line("food", 2), line("food", 2), line("food", 1)],
    ],
    "join_window": [line("ann", {"name": "ann", "age": 3, "num": 10})],
    "left_join_window": [
        line("ann", {"name": "ann", "age": 3, "num": 10}),
        line("bob", {"name": "bob", "age": 0, "num": 0}),
        line("cid", {"name": "cid", "age": 5, "num": 0}),
    ],
    "join_without_window": [
        line("ann", {"name": "ann", "age": 3, "num": 10}),
        line("cid", {"name": "cid", "age": 5, "num": 30}),
        line("eve", {"name": "eve", "age": 1, "num": 1}),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def jobs(one_partition_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileJob]:
    """Run all examples until they end, a few of them concurrently, and return their jobs by name."""
    jobs_by_name = {}
    for name in NAMES:
        module = load_example(name)
        jobs_by_name[name] = FileJob(one_partition_spark, tmp_path_factory.mktemp(name), module.build(), module.PROPERTIES)
        for topic, messages in TOPICS.items():
            jobs_by_name[name].send(topic, *messages)
    for index in range(0, len(NAMES), CONCURRENT_JOBS):
        started = [(jobs_by_name[name], jobs_by_name[name].start()) for name in NAMES[index : index + CONCURRENT_JOBS]]
        for job, running in started:
            job.finish(running)
    return jobs_by_name


@pytest.mark.parametrize("name", NAMES)
def test_an_example_yields_the_expected_output(jobs: dict[str, FileJob], name: str) -> None:
    job = jobs[name]
    if name == "word_count_sink":
        written = sorted(job.written["wordCountSink"])
        assert written == [
            (word.encode(), json.dumps({word: count}).encode())
            for word, count in sorted({"be": 4, "end": 1, "not": 1, "or": 1, "to": 2}.items())
        ]
    else:
        assert sorted(job.printed) == sorted(EXPECTED[name])
    if name == "word_count_from_first_offset":
        assert job.options["sourceTopic"]["startingOffsets"] == "earliest"
