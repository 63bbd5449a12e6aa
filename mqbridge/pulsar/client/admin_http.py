"""HTTP calls of the admin interface, with errors that say what helps."""

from typing import Any
from urllib.parse import quote

import httpx

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.pulsar.wire.names import TopicName

MISSING = 404
_FAILURES = {401: Failure.FATAL, 403: Failure.FATAL, MISSING: Failure.FATAL, 405: Failure.FATAL, 409: Failure.REFUSED}
_FAILURES |= {412: Failure.FATAL, 400: Failure.FATAL}
"""Every other status may pass."""
GUESSED = (
    ". This address of the REST interface is a guess, made from the service URL: give the right one with ?admin=http://HOST:PORT"
)


class AdminHttp:
    """Connections to one web service."""

    def __init__(self, url: str, timeout_s: float, *, is_guess: bool = False) -> None:
        self._url = url
        self._advice = GUESSED if is_guess else ""
        self._http = httpx.AsyncClient(base_url=f"{url}/admin/v2", timeout=timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call; the parsed answer, None when it is empty. Raises ClusterError."""
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise RequestTimeout(f"{self._url} did not answer {method} {path} in time{self._advice}") from error
        except httpx.TransportError as error:
            raise Unreachable(f"{self._url} cannot be reached: {error}{self._advice}") from error
        if answer.status_code >= 300:
            said = answer.text[:300]
            failure = _FAILURES.get(answer.status_code, Failure.RETRY)
            if "json" not in answer.headers.get("content-type", ""):  # Pulsar refuses in JSON
                said += self._advice
            raise ServerRefused(f"{method} {path}: HTTP {answer.status_code}: {said}", answer.status_code, failure)
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise self.something_else(method, path) from error

    def something_else(self, method: str, path: str) -> ClusterError:
        """The answer is none of Pulsar's."""
        return ClusterError(
            f"{self._url} answered {method} {path} as Pulsar's REST interface does not{self._advice}", Failure.FATAL
        )


def path_of(topic: TopicName) -> str:
    """A topic's path below /admin/v2."""
    return f"/{topic.domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"
