"""Writes docs/reference/metrics.md from the declared metrics, so that the page and the program agree.

python -m tools.metrics_page --check     exits 1 when the file is not current
python -m tools.metrics_page --write
"""

import sys

from mqbridge.delivery.counters import BUCKETS_S
from mqbridge.gateway.health import STUCK_S
from mqbridge.gateway.lag import MEASURE_INTERVAL_S
from mqbridge.gateway.metrics.collector import families
from mqbridge.gateway.metrics.source_and_targets import MAX_PARTITION_SERIES, MAX_TARGET_SERIES
from mqbridge.gateway.report import FAILING_LOG_S
from mqbridge.net.connectivity import FORGET_S
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "metrics.md"

_BEGINNING = f"""\
# Metrics and health

<!-- Written by `python -m tools.metrics_page --write` from the code. Do not edit. -->

While it runs, the gateway answers at `http.listen` (`127.0.0.1:8098`):

| path | response |
|---|---|
| `/metrics` | all metrics below, for Prometheus |
| `/health/live` | 200 while the process answers |
| `/health/ready` | 200 while everything is well, 503 otherwise; the body names the problems |
| `/routes` | each route: totals, lag, messages in flight, targets without receipts, why it stopped or retries |
| `/listeners` | each listener: address, totals, connections, producers and consumers, why it does not serve clients |

[Alert rules](../../deploy/prometheus/alerts.yaml) and a [Grafana dashboard](../../deploy/grafana/dashboard.json) use these
metrics; a test compares them with the code.

## An outage

A server counts as missing from the first connection that fails, or that is closed because the server is silent, until it
responds again. Name servers, Masters and service addresses replace each other: they count as missing only while none of them
responds. A lost connection that is made again at once is not an outage. A server that the gateway has not tried to reach for
{FORGET_S:g} s is no longer needed: its topic moved, or the server left the cluster.

- The log has one WARNING (`cluster b cannot be reached, …`) and one INFO line when it is over, with its duration. The attempts
  between them are logged at level DEBUG.
- `mqbridge_cluster_up` is 0, `/health/ready` answers 503 with the reason under `away`, `/routes` has it under `retrying`.
- Nothing is lost: received messages wait in memory up to `in_flight_bytes`, the rest stays at the source, and
  `mqbridge_lag` grows until the cluster is back.

## A target that is full or refuses everything

The gateway retries, and nothing is lost. After {FAILING_LOG_S:g} s the log has one WARNING with the last failure (a full disk, an
exceeded quota, a namespace that demands encryption, …), and one INFO line when the target stores messages again. Until then
`/routes` and `/health/ready` have the last failure and the number of failures under `failing`,
`mqbridge_target_failing_seconds` grows, and after {STUCK_S:g} s without a receipt the gateway is not ready.

## Readiness

`/health/ready` has these parts, and is 503 when one of the first six is not empty:

| part | content |
|---|---|
| `stopped` | routes that stopped or join their group again, stopped partitions, topics of a pattern that fail, and the reasons |
| `away` | clusters of the routes and listeners that cannot be reached, for how long and why |
| `stuck` | targets with sends in flight and no receipt for {STUCK_S:g} s |
| `paused` | source topics or partitions that the cluster does not let the gateway read now, and the reasons |
| `unprotected` | targets that are not written to, because their cluster deletes unread messages, and the reasons |
| `listeners` | listeners that do not serve clients: they wait for a cluster, start, or drain |
| `failing` | targets whose sends fail and are retried, with the last failure; `stuck` if it lasts |
| `clusters` | every cluster: whether it is up, and the totals of its connections |
| `reload` | the result of the last reload of the configuration |

Beside an application in one pod, name the remote clusters in `http.ready_without`: their troubles are shown, and do not make the
gateway not ready, so that the outage of a remote cluster does not take the application out of service.

## Lag

Every {MEASURE_INTERVAL_S:g} s the gateway asks the source cluster for the group's backlog, in the cluster's own unit: messages
(systems `rocketmq` and `log`); entries, each of which may hold many messages (`pulsar`, with `admin_url`); or estimated messages
(`tubemq`, with `admin_url`): the partitions of a store share its index, so each has its part of the store's messages after the
group's position. It is the lag of the group, whichever instance asks:
with several instances take the maximum, as in `max by (route) (mqbridge_lag)`, not the sum. It is measured also while the route
is stopped. If the source does not report it, `/routes` has the reason under `lag.problem`. A route has at most
{MAX_PARTITION_SERIES} series by partition (those with the greatest lag) and {MAX_TARGET_SERIES} by target (those that have
waited longest); its totals include all of them.

## Every metric

The process also has the usual `process_*` and `python_*` metrics.
"""


def page() -> str:
    """Return the text of the whole page."""
    lines = [_BEGINNING, "| name | type | labels | meaning | when to look |", "|---|---|---|---|---|"]
    for family in families():
        cells = (
            f"`{family.full_name}`",
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            family.description,
            family.when_to_look,
        )
        lines.append("| " + " | ".join(cells) + " |")
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS_S)
    return "\n".join(lines) + f"\n\nThe buckets of histograms end at {bounds} s.\n"


def main(arguments: list[str] | None = None) -> int:
    """Check or write the page; return the exit code."""
    return check_or_write("tools.metrics_page", PAGE, page(), arguments)


if __name__ == "__main__":
    sys.exit(main())
