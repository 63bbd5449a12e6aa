"""Extracts the cause of a failed query from Spark's long error texts."""

import re

_MQBRIDGE_ERROR = re.compile(
    r"^\s*(?:pyspark\.errors\.\S+: )?(?:mqbridge\.errors|mqbridge\.config\.problems)\.(\w+): (.+)$", re.MULTILINE
)
_PYTHON_ERROR = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Timeout)): (.+)$", re.MULTILINE)
_STREAM_PREFIX = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)
MAX_CAUSE_CHARS = 500
"""Limit of a cause that is the first line of the text: the line may be very long."""


def find_cause(text: str) -> str:
    """Return the cause in Spark's error text: its last error of mqbridge, else its last Python error, else its first line."""
    if own_errors := _MQBRIDGE_ERROR.findall(text):
        return str(own_errors[-1][1].strip())
    if errors := _PYTHON_ERROR.findall(text):
        name, problem = errors[-1]
        return f"{name.rpartition('.')[2]}: {problem.strip()}"
    lines = _STREAM_PREFIX.sub("", text).strip().splitlines()
    return lines[0][:MAX_CAUSE_CHARS] if lines else "unknown cause: Spark reported no error text"
