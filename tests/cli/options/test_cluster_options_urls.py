"""Clusters that a URL on the command line names."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from mqbridge.adapter.registry import load_adapters
from mqbridge.config.cluster_choice import choose
from mqbridge.errors import ConfigError
from tests.cli.conftest import Invoke
from tests.kit.process import free_ports


def settings(url: str) -> dict[str, object]:
    return choose(None, None, url).settings.model_dump()


def test_parameters_are_the_settings_of_the_configuration() -> None:
    tube = settings("tubemq://a:1,b?admin=http://c:8080&admin_token.env=SECRET&request_timeout=20s")
    assert (tube["masters"], tube["admin_url"], tube["request_timeout"]) == (("a:1", "b"), "http://c:8080", "20s")
    assert tube["admin_token"] == {"env": "SECRET"}
    pulsar = settings("pulsar://a:6650,b?admin_url=http://c:8080&namespace=t/n")
    assert (pulsar["service_url"], pulsar["admin_url"], pulsar["namespace"]) == ("pulsar://a:6650,b", "http://c:8080", "t/n")
    rocket = settings("rocketmq://a:9876,b/?heartbeat=5s")
    assert (rocket["name_servers"], rocket["heartbeat"]) == (("a:9876", "b:9876"), "5s")
    log = settings("log:///tmp/x.db?retention=1d")
    assert (log["path"], log["retention"]) == (Path("/tmp/x.db"), "1d")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("tubemq://a?admin=http://b&admin_tokn=x", "there is no parameter 'admin_tokn'. Did you mean 'admin_token'?"),
        ("pulsar://a?adminurl=http://b", "there is no parameter 'adminurl'. Did you mean 'admin_url'?"),
        (
            "rocketmq://a?admin_token=x",
            "there is no parameter 'admin_token'. Known: addresses, auth, brokers, heartbeat, max_message_size, ",
        ),
        ("log:///x.db?admin=http://b", "there is no parameter 'admin'. Known: busy_timeout, "),
        ("pulsar://a?service_url=pulsar://b", "there is no parameter 'service_url'"),
        ("tubemq://a?admin=http://b&admin_url=http://c", "the parameter 'admin_url' is given twice"),
        ("pulsar://a?auth=x&auth.token.file=y", "'auth.token.file' and 'auth' cannot be given together"),
        ("pulsar://a?auth.token=x&auth=y", "'auth' and options below it, such as 'auth.token', cannot be given together"),
        ("pulsar://a?keep_alive=soon", "keep_alive"),
        ("pulsar://a:6650?tls=true", "tls is given, but service_url is without TLS: write pulsar+ssl://a:6650"),
        ("pulsar+ssl://a:6651?tls=false", "tls is off, but service_url begins with pulsar+ssl://"),
        ("pulsar+ssl://a:6651?auth.method=tls", "auth by method tls needs the gateway's certificate: give tls.certificate"),
        ("pulsar+ssl://a:6651?auth.method=tokn", "method 'tokn' is neither built in"),
        ("pulsar+ssl://a:6651?auth.method=token", "method token needs token"),
        ("pulsar+ssl://a:6651?auth.token=x&auth.user=y", "method token has no option 'user'"),
        ("pulsar+ssl://a:6651?auth.user=y", "the option method is missing: give one of token, basic, tls"),
    ],
)
def test_a_problem_in_a_url_is_reported(url: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        choose(None, None, url)
    assert problem in str(raised.value)


def test_every_setting_of_a_system_with_urls_can_be_given() -> None:
    """The names come from the model, so that a new setting is tested too."""
    address_fields = {"pulsar": "service_url", "tubemq": "masters", "rocketmq": "name_servers", "log": "path"}
    for system, address in address_fields.items():
        model = load_adapters()[system].cluster_model
        with pytest.raises(ConfigError) as raised:
            choose(None, None, f"{system}://x?zzzzzzzzzz=1")
        assert all(name in str(raised.value) for name in model.model_fields.keys() - {address})


class _HtmlPage(BaseHTTPRequestHandler):
    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>another page</html>")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def other_page(port: int, code: int) -> Iterator[None]:
    """Run a web server at this port that answers every request with this status and an HTML page."""

    class Page(_HtmlPage):
        pass

    Page.code = code
    with HTTPServer(("127.0.0.1", port), Page) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("code", [None, 200, 404])
@pytest.mark.parametrize("guessed", [True, False])
def test_a_guessed_admin_address_is_named_as_a_guess(code: int | None, guessed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`code` is the status that another web server returns at the address; with None there is no server."""
    from mqbridge.errors import ClusterError
    from mqbridge.pulsar.adapter.cluster import Pulsar
    from mqbridge.pulsar.adapter.config import PulsarCluster

    (port,) = free_ports(1)
    monkeypatch.setattr("mqbridge.pulsar.adapter.config.ADMIN_PORT", port)
    config = PulsarCluster.from_url("pulsar://127.0.0.1" + ("" if guessed else f"?admin=http://127.0.0.1:{port}"))

    async def list_topics() -> None:
        cluster = Pulsar("p", config)
        try:
            await cluster.topics()
        finally:
            await cluster.close()

    with nullcontext() if code is None else other_page(port, code), pytest.raises(ClusterError) as raised:
        asyncio.run(list_topics())
    assert ("is a guess" in str(raised.value)) is guessed
    assert ("give the right one with ?admin=http://HOST:PORT" in str(raised.value)) is guessed


@pytest.mark.parametrize(
    "response", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b""], ids=["http", "tls", "closed"]
)
@pytest.mark.parametrize("system", ["pulsar", "tubemq", "rocketmq"])
def test_another_server_at_the_port_is_reported(
    system: str, response: bytes, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses of web servers, TLS servers, and servers that only close the connection, to a client of another protocol."""
    monkeypatch.setattr("mqbridge.tubemq.client.connection.master.REGISTER_PAUSE_S", 0.0)
    (port,) = free_ports(1)

    def serve(loop: asyncio.AbstractEventLoop) -> None:
        async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read(1 << 16)  # the whole request: closing with unread bytes would reset the connection
                writer.write(response)
                writer.close()
                await writer.wait_closed()

        async def main() -> None:
            async with await asyncio.start_server(exchange, "127.0.0.1", port):
                started.set()
                await stop.wait()
                for _ in range(3):  # let the loop accept pending connections before the server closes, or they would be lost
                    await asyncio.sleep(0)
                while others := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(others)

        loop.run_until_complete(main())

    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), Event()
    thread = Thread(target=serve, args=(loop,), daemon=True)
    thread.start()
    started.wait()
    try:
        answer = invoke("topics", "--at", f"{system}://127.0.0.1:{port}")
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
    assert answer.code == 3
    assert f"127.0.0.1:{port} can be reached, but does not answer as a " in answer.err
    assert "Is it the port of another system" in answer.err
