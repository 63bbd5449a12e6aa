"""`mqbridge listen`: serve unmodified clients of a system over one cluster, without a configuration file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mqbridge.cli.options import completion
from mqbridge.cli.output.console import print_note, service
from mqbridge.cli.running import gateway

if TYPE_CHECKING:
    from mqbridge.config.options.config import Config
    from mqbridge.gateway.listeners import ListenerRunner

SETTINGS = {"pulsar": "service URL pulsar://{address}", "rocketmq": "name server {address}", "tubemq": "Master {address}"}
"""What clients of a system have in their settings for a listener; of others, it is the address."""
WEB_URLS = {"pulsar": "http://{address}"}


@service
def listen(
    *,
    system: Annotated[
        str,
        typer.Argument(
            metavar="SYSTEM",
            help="The system whose clients are served: pulsar, rocketmq or tubemq.",
            autocompletion=completion.listened_systems,
        ),
    ],
    url: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="URL|PROFILE",
            help="The cluster that stores the messages: SYSTEM://HOST:PORT[,HOST:PORT], log:///PATH, or the name of a cluster in "
            "your own configuration, ~/.config/mqbridge/clusters.yaml ($MQBRIDGE_PROFILES).",
            autocompletion=completion.profiles,
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The listener's name in metrics, logs and the state file; default: SYSTEM.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Address to listen at; default: 127.0.0.1 and the system's port."),
    ] = None,
    web: Annotated[
        str | None,
        typer.Option("--web", metavar="HOST:PORT", help="Address of the system's HTTP interface; without it, it is not served."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="Address that clients are told to connect to; default: the one they used."
        ),
    ] = None,
    groups: Annotated[
        Literal["backing", "own"],
        typer.Option("--groups", help="Groups of clients are groups of the cluster, or this gateway's own, which needs --state."),
    ] = "backing",
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FILE", help="The state file, which only one gateway may use.")
    ] = None,
    create_partitions: Annotated[
        int | None,
        typer.Option(
            "--create-partitions",
            metavar="N",
            min=0,
            help="Partitions of topics that clients create by using them, default 4; 0: topics must exist.",
        ),
    ] = None,
    is_open: Annotated[
        bool, typer.Option("--open", help="Permit addresses that other machines can reach; clients are not authenticated.")
    ] = False,
    manage: Annotated[
        bool, typer.Option("--manage", help="Permit clients to delete topics and groups, and to reset groups.")
    ] = False,
) -> None:
    """Serve unmodified clients of a system over any cluster.

    For example:

        mqbridge listen pulsar --at rocketmq://127.0.0.1:9876
        mqbridge listen rocketmq --at log:///tmp/orders.db --groups own --state /tmp/orders-state.db
        mqbridge listen tubemq --at pulsar://127.0.0.1:6650
        mqbridge listen pulsar --at log:///tmp/orders.db --groups own --state /tmp/orders-state.db --web 127.0.0.1:8080

    When clients can connect, it prints the address for their settings: `clients of pulsar can connect: service URL
    pulsar://127.0.0.1:6650`, `clients of rocketmq can connect: name server 127.0.0.1:9876`, or `clients of tubemq can connect:
    Master 127.0.0.1:8715`. It runs until it is stopped, and logs as `mqbridge run` does; the log has the address of metrics and
    health, too.

    The first Ctrl-C or SIGTERM sends clients away: what they have sent is stored and answered. The second quits at once.

    A configuration has more options, and several listeners and routes in one process; see `mqbridge run`.
    """
    from mqbridge.config.cluster_choice import choose

    choice = choose(None, None, url)
    listener: dict[str, Any] = {
        "name": name or system,
        "system": system,
        "cluster": choice.name,
        "listen": address,
        "web": web,
        "advertise": advertise,
        "groups": groups,
        "open": is_open,
        "manage": manage,
    }
    if create_partitions is not None:
        listener["create"] = {"partitions": create_partitions} if create_partitions else False
    config = _configuration(choice.name, choice.adapter.system, choice.settings, listener, state)
    gateway.configure_log(config)
    result = gateway.serve(config, None, on_serving=_print_addresses)
    gateway.report(result)
    raise typer.Exit(gateway.exit_code_of(result))


def _configuration(cluster: str, system: str, settings: Any, listener: dict[str, Any], state: Path | None) -> "Config":
    """Return the configuration of one cluster and one listener. Raises ConfigErrors.

    Metrics and health get a free port, so that several gateways can run on this machine.
    """
    from mqbridge.config.load import from_dict
    from mqbridge.config.options.cluster import ClusterConfig

    data: dict[str, Any] = {
        "clusters": {cluster: ClusterConfig.model_construct(system=system, settings=settings)},
        "listeners": [listener],
        "http": {"listen": "127.0.0.1:0"},
    }
    if state is not None:
        data["state"] = str(state)
    return from_dict(data)


def _print_addresses(runner: "ListenerRunner") -> None:
    """Print what clients need in their settings."""
    system = runner.config.system
    text = SETTINGS.get(system, "address {address}").format(address=runner.address)
    if runner.web_address is not None:
        text += f", admin URL {WEB_URLS.get(system, '{address}').format(address=runner.web_address)}"
    print_note(f"clients of {system} can connect: {text}")
