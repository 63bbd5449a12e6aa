"""`mqbridge quickstart`: publish through a Pulsar listener, bridge the topic, and prove that nothing was lost or changed.

The official Python SDK, if it is installed, or our own client publishes to a listener on an embedded log. The gateway bridges the
topic to a copy in another log, which is read back to compare number, order and every field per partition. Some messages are too
large for the target on purpose: they must arrive in the dead-letter topic.
"""

import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge import native
from mqbridge.cli.output.console import command, print_json, print_note, print_table, stderr_console, stdout_console
from mqbridge.cli.process import event_loop, exit_codes, logs

if TYPE_CHECKING:
    from rich.progress import Progress

    from mqbridge.cli.demo.run_demo import DemoResult


@command
def quickstart(
    *,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="Number of messages to bridge.")] = 200_000,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=256, help="Number of partitions.")] = 8,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="DIR",
            file_okay=False,
            help="Keep the data in this folder, which must not contain an earlier quickstart.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print the figures as JSON.")] = False,
) -> None:
    """Publish through a Pulsar listener, bridge the stream, and prove that it arrived. Needs nothing but Python.

    For example:

        mqbridge quickstart
        mqbridge quickstart --messages 1000000 --keep /tmp/mqbridge-demo

    Without --keep, the data is deleted at the end.
    """
    logs.configure("error")  # the gateway warns about dead letters, which the demo causes on purpose
    if native.compiled is None:
        print_note(native.notice)  # how to install the compiled module, and why it is not used
    if keep is not None:
        _run(keep, messages, partitions, as_json, kept=True)
        return
    with tempfile.TemporaryDirectory(prefix="mqbridge-quickstart-") as folder:
        _run(Path(folder), messages, partitions, as_json, kept=False)


def _run(folder: Path, messages: int, partitions: int, as_json: bool, *, kept: bool) -> None:
    """Run the demo with its files in this folder, print the result, and exit. `kept`: the folder is not deleted afterwards."""
    from mqbridge.cli.demo import run_demo
    from mqbridge.config.load import load

    config_file = run_demo.write_configuration(folder)
    config = load(config_file)
    started_at = time.monotonic()
    with _progress() as progress:
        result = event_loop.run(run_demo.bridge(config, messages, partitions, _ProgressBars(progress)))
    if as_json:
        print_json(result.as_dict() | {"seconds": round(time.monotonic() - started_at, 3)})
    else:
        _show(result, config_file if kept else None)
    raise typer.Exit(exit_codes.OK if result.is_complete else exit_codes.STOPPED)


def _progress() -> "Progress":
    """Return progress bars for standard error; they show nothing unless it is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = stderr_console()
    return Progress(*columns, console=console, disable=not console.is_terminal)


class _ProgressBars:
    """Callback that shows each step as a progress bar; see `run_demo.ReportProgress`."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[str, Any] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        """Update the bar of this step, and add it first if the step is new."""
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._tasks[step], completed=done)


def _show(result: "DemoResult", config_file: Path | None) -> None:
    """Print the result and what to try next. `config_file`: the demo's configuration; None if it is deleted with the data."""
    rows = [
        (row.partition, row.sent, row.copied, row.sent_checksum, row.copied_checksum, "equal" if row.equal else "DIFFERENT")
        for row in result.partitions
    ]
    columns = ["partition", "sent", "copied", "checksum sent", "checksum copied", "result"]
    print_table(columns, rows, right=["sent", "copied"])
    console = stdout_console()
    client = "the official Python SDK" if result.has_official_sdk else "our own client"
    console.print(f"published to the Pulsar listener by {client}")
    for step in result.steps:
        console.print(f"{step.name:>8}: {step.messages:,} messages in {step.seconds:.2f} s, {step.rate:,.0f} per second")
    console.print(
        f"dead letters: {result.dead_letters:,} of {result.too_large:,} messages that were made too large for the target"
    )
    console.print(
        "everything arrived, in order and unchanged" if result.is_complete else "something differs: see the results above",
        style="bold",
    )
    _print_next_steps(config_file)


def _print_next_steps(config_file: Path | None) -> None:
    if config_file is None:
        suggestions = ["mqbridge quickstart --keep /tmp/mqbridge-demo", "mqbridge example"]
    else:
        path = shlex.quote(str(config_file))
        suggestions = [
            f"mqbridge consume -F {path} -b target -t orders-copy -c 5 -e -f '%t [%p] %o: %k %s\\n'",
            f"mqbridge consume -F {path} -b source -t orders-dead -e --json | head -c 300",
            f"mqbridge check {path} --connect",
            f"mqbridge groups orders -F {path} -b source",
            f"mqbridge run {path} --until-idle 1",
        ]
    stdout_console().print("\nTry next:")
    for line in suggestions:
        stdout_console().print(f"  {line.replace('mqbridge', _program(), 1)}", soft_wrap=True)


def _program() -> str:
    """Return how to call this program here: its virtual environment may not be on the PATH."""
    if shutil.which("mqbridge") is not None:
        return "mqbridge"
    path = Path(sys.argv[0])
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
