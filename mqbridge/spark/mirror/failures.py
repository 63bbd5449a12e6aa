"""Why a query failed, in one sentence of the many that Spark says."""

import re

_OURS = re.compile(r"^\s*(?:pyspark\.errors\.\S+: )?(?:mqbridge\.errors|mqbridge\.config\.problems)\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Timeout)): (.+)$", re.MULTILINE)
_STREAM = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)
MOST = 500


def reason_of(text: str) -> str:
    """The error of ours that it goes back to, else the last Python error, else its first line."""
    if ours := _OURS.findall(text):
        return str(ours[-1][1].strip())
    if errors := _PYTHON.findall(text):
        name, problem = errors[-1]
        return f"{name.rpartition('.')[2]}: {problem.strip()}"
    lines = _STREAM.sub("", text).strip().splitlines()
    return lines[0][:MOST] if lines else "no reason is known"
