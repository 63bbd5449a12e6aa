"""Sampled stacks go to the package whose work they are, and fit into a picture."""

from pathlib import Path

import pytest

import mqbridge
from tests.bench import flame
from tests.bench.stacks import (
    ADAPTER,
    CLIENT,
    COMPILED,
    DELIVERY,
    FOLDERS,
    KERNEL,
    MAPPING,
    NET,
    OTHER,
    Stack,
    group_of,
    largest,
    parse,
    plain,
    shares,
)
from tests.bench.syscalls import read_perf, read_strace

ROOT = Path(mqbridge.__file__).parent
MAIN = "_start (python3.11);main (mqbridge/cli/main.py:9);run_forever (uvloop/loop.pyx:3);"
RAW = f"""{MAIN}data_received (mqbridge/net/endpoint.py:7);feed (mqbridge/wire/cutter.py:30) 30
{MAIN}LaneDelivery.run (mqbridge/delivery/lane.py:80);encode (/w/mqbridge/pulsar/mapping/fast/encode.py:4);memcpy (libc.so.6) 20
{MAIN}LaneDelivery.run (mqbridge/delivery/lane.py:81) 10
{MAIN}_flush (mqbridge/net/endpoint.py:9);uv_try_write (stream.c:80);writev (libc.so.6) 15
{MAIN}decode (mqbridge/pulsar/mapping/stored.py:5);decode (mqbridge_native.abi3.so) 10
{MAIN}uv__io_poll (linux.c:90) 10
{MAIN}uv__io_poll (linux.c:90);epoll_pwait (libc.so.6) 700
{MAIN}fetch (mqbridge/rocketmq/client/consumer/pull_loop.py:3);loads (json/__init__.py:3) 10
_start (python3.11);collect (gcmodule.c:3) 10
"""


def test_a_stack_belongs_to_its_innermost_package_of_mqbridge() -> None:
    assert shares(parse(RAW), kernel=0.5) == pytest.approx(
        {MAPPING: 0.25, COMPILED: 0.05, CLIENT: 0.05, DELIVERY: 0.05, NET: 0.05, OTHER: 0.05, KERNEL: 0.5}
    )


def test_stacks_in_system_calls_are_left_out() -> None:
    assert sum(stack.samples for stack in parse(RAW)) == 100


def test_library_frames_count_as_their_caller() -> None:
    assert largest(parse(RAW), 2) == [
        ("feed (wire/cutter.py)", MAPPING, 0.3),
        ("encode (pulsar/mapping/fast/encode.py)", MAPPING, 0.2),
    ]


@pytest.mark.parametrize(
    ("frame", "group"),
    [
        ("Batch.release_messages (mqbridge/message.py:80)", MAPPING),
        ("route (mqbridge/routes/route.py:80)", DELIVERY),
        ("rows (mqbridge/log/store/read.py:80)", CLIENT),
        ("receive (mqbridge/testing/memory/adapter/inbound.py:80)", ADAPTER),
        ("last_stored (mqbridge/adapter/tools/stored_positions.py:80)", ADAPTER),
        ("get_running_loop (_asynciomodule.c:2)", NET),
        ("run (mqbridge/cli/commands/run.py:80)", None),
        ("memcpy (libc.so.6)", None),
        ("import_compiled (mqbridge/native.py:3)", OTHER),
    ],
)
def test_the_group_of_a_frame_follows_from_its_file(frame: str, group: str | None) -> None:
    assert group_of(frame) == group


def test_the_folders_with_a_group_exist() -> None:
    folders = [ROOT, *(path.parent for path in ROOT.rglob("adapter") if path.parent != ROOT)]
    existing = {path.stem for folder in folders for path in folder.iterdir()}
    assert FOLDERS.keys() <= existing
    cold = {"cli", "config", "errors", "library", "native", "py", "shipped", "spark"}  # `native` only chooses an implementation
    systems = {folder.name for folder in folders}
    assert {path.stem for path in ROOT.iterdir() if not path.name.startswith("__")} - systems <= FOLDERS.keys() | cold


def test_the_flame_graph_leaves_out_narrow_frames() -> None:
    wide, narrow = Stack(("root (a.py:1)", "wide <b> (b.py:2)"), 999), Stack(("root (a.py:1)", "narrow (b.py:3)"), 1)
    picture = flame.svg([wide, narrow], "a title")
    assert "<title>wide &lt;b&gt; (b.py) 99.9%</title>" in picture
    assert "narrow" not in picture
    assert picture.startswith("<svg ")


def test_unnamed_system_calls_of_perf_are_counted_as_others() -> None:
    text = "# started\n70,,raw_syscalls:sys_enter,1,100.00,,\n20,,syscalls:sys_enter_read,1,100.00,,\n"
    text += "30,,syscalls:sys_enter_writev,1,100.00,,\n0,,syscalls:sys_enter_brk,1,100.00,,\n"
    text += "<not counted>,,syscalls:sys_enter_mmap,0\n"
    assert read_perf(text) == {"writev": 30, "read": 20, "others": 20}


def test_the_table_of_strace_is_parsed() -> None:
    text = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000300           1       198         2 read
 40.00    0.000200           2       113           writev
------ ----------- ----------- --------- --------- ----------------
100.00    0.000500           1       311         2 total
"""
    assert read_strace(text) == {"read": 198, "writev": 113}


def test_frames_of_the_compiled_module_have_no_function_names() -> None:
    assert plain("0x7f88cb4ff0a8 (mqbridge_native/mqbridge_native.abi3.so)") == COMPILED
