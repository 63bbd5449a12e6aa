"""Answers: JSON with `result`, `errCode` and `errMsg`, and always HTTP status 200, as a Master and a Broker write them.

What the gateway does not know is left out, or is NOT_KNOWN where the servers write that themselves.
"""

import json
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.wire import codes

Answer = dict[str, Any]

NOT_KNOWN = -2
"""What a Master and a Broker write for a number that they do not have."""
DONE, EXISTS, MISSING, NOT_CHANGED, FEWER_PARTITIONS = 200, 402, 401, 403, 407
"""Codes of the entries of an answer."""


class WebRefusal(CodedRefusal):
    """A request that is refused, with the code and the text of the answer."""

    def __init__(self, problem: str, code: int = codes.BAD_REQUEST) -> None:
        super().__init__(problem, code)


def master_answer(data: Sequence[Answer]) -> Answer:
    """Return the answer of a Master that has entries."""
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


def broker_answer(data: Sequence[Answer], count: str = "totalCnt") -> Answer:
    """Return the answer of a Broker that has entries; `count` is the name of the field with their number."""
    return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": data, count: len(data)}


def failure(code: int, text: str) -> Answer:
    """Return the answer to a request that was not carried out."""
    return {"result": False, "errCode": code, "errMsg": text}


def response_of(answer: Answer) -> Response:
    """Return an answer as JSON in ASCII."""
    return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")
