"""The helpers of the Spark tests: the shared session, queries that are restarted, and programs that are killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from tests.kit.guard import members
from tests.kit.spark import REPOSITORY, SparkProgram, collect_stream, environment, run_available
from tests.patience import SERVER_PATIENCE_S
from tests.spark.waiting import wait_for

PROGRAM = """
import sys, time
from tests.kit.spark import session_from_environment
spark = session_from_environment()
print("sum", spark.range(10).groupBy().sum().collect()[0][0], flush=True)
if sys.argv[1] == "stay":
    spark.sparkContext.range(2).map(lambda _: time.sleep(600)).collect()
"""


def test_python_workers_run_this_interpreter(spark: SparkSession) -> None:
    def executable(_: int) -> str:
        import sys

        return sys.executable

    assert spark.sparkContext.range(2).map(executable).collect() == [sys.executable] * 2


def test_times_are_in_utc(spark: SparkSession) -> None:
    assert spark.sql("select cast(timestamp_seconds(0) as string)").first() == ("1970-01-01 00:00:00",)


async def test_a_query_continues_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = (tmp_path / name for name in ("source", "target", "checkpoint"))
    for first in (0, 10):
        spark.range(first, first + 10).write.mode("append").parquet(str(source))
        frame = spark.readStream.schema("id long").parquet(str(source))
        progress = await asyncio.to_thread(
            run_available, frame.writeStream.format("parquet").option("path", str(target)), checkpoint
        )
        assert sum(report["numInputRows"] for report in progress) == 10
    assert sorted(row.id for row in spark.read.parquet(str(target)).collect()) == list(range(20))


def test_state_is_stored_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(100).write.parquet(str(tmp_path / "source"))
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "source"))
    counts = frame.groupBy((F.col("id") % 3).alias("rest")).count()
    rows = collect_stream(counts, tmp_path / "checkpoint", "counts_in_rocksdb", "update")
    assert {row.rest: row["count"] for row in rows} == {0: 34, 1: 33, 2: 33}
    assert list((tmp_path / "checkpoint" / "state").rglob("*.changelog"))


@pytest.mark.spark
def test_a_program_runs_to_its_end(tmp_path: Path) -> None:
    with SparkProgram(tmp_path, "-c", PROGRAM, "end") as program:
        assert "sum 45" in program.wait(SERVER_PATIENCE_S)


@pytest.mark.thorough
@pytest.mark.spark
def test_workers_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    with SparkProgram(tmp_path, "-c", PROGRAM, "stay") as program:
        wait_for(lambda: "sum 45" in program.log and len(members(program.pid)) > 3)
        program.kill()
        assert not members(program.pid)


@pytest.mark.thorough
@pytest.mark.spark
def test_all_spark_processes_end_when_the_test_run_is_killed(tmp_path: Path) -> None:
    owner = f"""
import time
from pathlib import Path
from tests.kit.spark import SparkJvm, SparkProgram
program = SparkProgram(Path({str(tmp_path / "program")!r}), "-c", {PROGRAM!r}, "stay")
jvm = SparkJvm(Path({str(tmp_path)!r}))
while "sum 45" not in program.log:
    time.sleep(0.05)
print(program.pid, jvm._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", owner], cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        program, jvm = map(int, process.stdout.readline().split())
        process.kill()
        process.wait(SERVER_PATIENCE_S)
        wait_for(lambda: not members(program) and not Path(f"/proc/{jvm}").exists())
