"""The CPU time of a process tree includes its children, also after their end, except for the excluded ones."""

import os
import subprocess
import sys

from tests.bench.process_tree import tree_cpu_s

WORK = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"


def test_processor_time_includes_running_and_ended_children() -> None:
    before = tree_cpu_s(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with_child = tree_cpu_s(os.getpid())
    assert with_child - before >= 0.25
    assert with_child - tree_cpu_s(os.getpid(), without=[child.pid]) >= 0.25
    child.communicate()
    assert tree_cpu_s(os.getpid()) - before >= 0.25
