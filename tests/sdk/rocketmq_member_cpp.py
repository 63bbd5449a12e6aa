"""A push consumer of the official C++ client: a JSON line for each delivery, as `tests/go/rocketmq_member` prints it.

The number of a message is its key: the Python package cuts a body off at its first zero byte.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rocketmq.client import PushConsumer, RecvMessage, dll, ffi_check

POLL_S = 0.05
SUCCESS = 0


def now_us() -> int:
    return time.time_ns() // 1000


def main() -> None:
    """Consume until there is a file of the given name. The process ends at once: threads of the client still call back."""
    parser = argparse.ArgumentParser()
    for name in ("name-servers", "topic", "group", "until"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--hold", type=int, default=0, help="ms that each call of the listener takes")
    options = parser.parse_args()

    def received(_: int, handle: int) -> int:
        message = RecvMessage(handle)
        line = {
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "number": int(message.keys),
            "at": time.time_ns() // 1000,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        time.sleep(options.hold / 1000)
        return SUCCESS

    consumer = PushConsumer(options.group)
    consumer.set_namesrv_addr(options.name_servers)
    consumer.set_instance_name(str(os.getpid()))
    ffi_check(dll.Subscribe(consumer._handle, options.topic.encode(), b"*"))
    consumer._register_callback(received)
    consumer.start()
    while not Path(options.until).exists():
        time.sleep(POLL_S)
    consumer.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
