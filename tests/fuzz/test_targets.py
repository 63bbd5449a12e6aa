"""Without a fuzzer: every seed decodes, earlier findings stay fixed, and memory does not grow over repetitions."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import MAX_GROWTH_MB, ROOT, installed, names
from tests.fuzz.target import MAX_INPUT_BYTES
from tests.fuzz.worker import rounds, rss_mb, target_of

FINDS = Path(__file__).parent / "finds"
OPEN: set[str] = set()
"""Found and not mended yet."""


@pytest.mark.parametrize("name", list(names()))
def test_every_seed_is_decoded_without_error(name: str) -> None:
    """A refused seed would not lead the fuzzer into the decoder."""
    target = target_of(name)
    assert target.seeds
    for seed in target.seeds:
        assert len(seed) <= MAX_INPUT_BYTES
        target.read(seed)


@pytest.mark.parametrize("path", sorted(FINDS.glob("*.hex")), ids=lambda path: path.stem)
def test_an_earlier_finding_stays_fixed(path: Path, request: pytest.FixtureRequest) -> None:
    """Files are named `system-decoder.reason.hex`, as `make fuzz` prints them."""
    if path.stem in OPEN:
        request.applymarker(pytest.mark.xfail(strict=True, reason="found and not mended yet"))
    target_of(path.name.partition(".")[0])(bytes.fromhex(path.read_text()))


@pytest.mark.parametrize("name", list(names()))
def test_decoding_leaks_no_memory(name: str) -> None:
    """Seeds and prefixes of seeds leak no memory, also where decoding raises."""
    target = target_of(name)
    inputs = [seed[:size] for seed in target.seeds for size in (len(seed), len(seed) // 2, len(seed) - 1)]
    rounds(lambda: [target(data) for data in inputs], 3)
    before = rss_mb()
    rounds(lambda: [target(data) for data in inputs], max(3, 2000 // len(inputs)))
    assert rss_mb() - before < MAX_GROWTH_MB


def test_an_unexpected_exception_of_a_reader_is_raised() -> None:
    target = target_of("rocketmq-frames")
    target(b"\xff")
    with pytest.raises(ZeroDivisionError):
        target._replace(read=lambda data: 1 // len(data))(b"")


@pytest.mark.skipif(not installed(), reason="the fuzzer is not installed")
def test_the_fuzzer_runs_one_target_for_a_second(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.fuzz", "--seconds", "1", "--only", "rocketmq-texts", "--folder", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 targets" in done.stdout


def test_without_atheris_the_command_reports_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['atheris'] = None; sys.argv = ['fuzz']; from tests.fuzz.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "atheris is not installed" in done.stdout
