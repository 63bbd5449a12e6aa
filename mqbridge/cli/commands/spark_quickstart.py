"""`mqbridge spark quickstart`: write a topic, count it per minute and mirror it with Spark; files replace the clusters."""

import shlex
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqbridge.cli.output.console import command, print_json, print_note, print_table, stderr_console, stdout_console
from mqbridge.cli.process import exit_codes, logs
from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from mqbridge.spark.quickstart import Results


@command
def quickstart(
    *,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="Number of messages to write.")] = 200_000,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=256, help="Number of partitions.")] = 4,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", file_okay=False, help="Keep the data in this folder, which must be empty or new."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print the figures as JSON.")] = False,
) -> None:
    """Write a topic, count it per minute and mirror it with Spark. Needs Java 17, and no cluster.

    For example:

        mqbridge spark quickstart
        mqbridge spark quickstart --messages 1000000 --keep /tmp/mqbridge-spark

    Without --keep, the data is deleted at the end. The exit code is 4 if a partition differs from its copy.
    """
    logs.configure("error")
    from mqbridge.spark.prerequisites import check_prerequisites

    check_prerequisites()
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise ConfigError("the folder is not empty", location=str(keep), hint="Choose another folder for --keep")
        keep.mkdir(parents=True, exist_ok=True)
        _run(keep.resolve(), messages, partitions, as_json=as_json, kept=True)
    else:
        with tempfile.TemporaryDirectory(prefix="mqbridge-spark-") as folder:
            _run(Path(folder), messages, partitions, as_json=as_json, kept=False)


def _run(folder: Path, messages: int, partitions: int, *, as_json: bool, kept: bool) -> None:
    from mqbridge.spark.quickstart import Quickstart
    from mqbridge.spark.session import session

    started_at = time.monotonic()
    progress = _Progress()
    with progress:
        progress.start("starting Spark")
        spark = session("mqbridge quickstart", sql_warehouse_dir=folder / "warehouse")
        try:
            results = Quickstart(spark, folder, messages, partitions, progress.start).run()
        finally:
            progress.start("stopping Spark")
            spark.stop()
    if as_json:
        print_json(_as_dict(results) | {"seconds": round(time.monotonic() - started_at, 3)})
    else:
        _show(results, folder if kept else None)
    raise typer.Exit(exit_codes.OK if results.all_equal else exit_codes.STOPPED)


class _Progress:
    """Shows the running step: a changing line on a terminal, otherwise a line per step."""

    def __init__(self) -> None:
        console = stderr_console()
        self._status = console.status("") if console.is_terminal else None

    def start(self, step: str) -> None:
        """Show the name of a step that begins."""
        if self._status is None:
            print_note(f"{step} …")
        else:
            self._status.update(f"{step} …")

    def __enter__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _as_dict(results: "Results") -> dict[str, object]:
    return {
        "holds": results.all_equal,
        "steps": [{"name": step.name, "messages": step.messages, "seconds": round(step.seconds, 3)} for step in results.steps],
        "minutes": [
            {"minute": minute.isoformat(), "orders": orders, "amount": amount} for minute, orders, amount in results.minutes
        ],
        "partitions": [
            {"partition": row.partition, "sent": row.sent, "copied": row.copied, "equal": row.equal} for row in results.partitions
        ],
    }


def _show(results: "Results", folder: Path | None) -> None:
    minutes = [(f"{minute:%H:%M}", orders, amount) for minute, orders, amount in results.minutes]
    print_table(["minute", "orders", "amount"], minutes, right=["orders", "amount"])
    stdout_console().print()
    rows = [
        (row.partition, row.sent, row.copied, row.sent_checksum, row.copied_checksum, "equal" if row.equal else "DIFFERENT")
        for row in results.partitions
    ]
    columns = ["partition", "sent", "copied", "checksum sent", "checksum copied", "result"]
    print_table(columns, rows, right=["sent", "copied"])
    for step in results.steps:
        stdout_console().print(f"{step.name:>19}: {step.messages:,} messages in {step.seconds:.1f} s")
    stdout_console().print(
        "everything arrived, in order and unchanged" if results.all_equal else "not every partition equals its copy", style="bold"
    )
    _next_steps(folder)


def _next_steps(folder: Path | None) -> None:
    suggestions = ["python examples/spark/word_count.py", "python examples/spark/join.py"]
    if folder is None:
        suggestions.insert(0, "mqbridge spark quickstart --keep /tmp/mqbridge-spark")
    else:
        suggestions.insert(0, f"mqbridge peek orders --at {shlex.quote(f'log://{folder}/copy.db')}")
    stdout_console().print("\nTry next (docs/how-to/spark.md says more):")
    for line in suggestions:
        stdout_console().print(f"  {line}", soft_wrap=True)
