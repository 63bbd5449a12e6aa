"""Features of Pulsar, each as a small program of an official SDK, which judge any server that speaks Pulsar's protocol.

`outcome_of(feature, language, service_url)` runs one program and returns its outcome; `expected.py` has the one outcome that is
right for all SDKs and servers. So an outcome has no value that differs by nature, such as a message id, but relations: ids are
equal after a reconnection, order is ascending.

| file | content |
|---|---|
| `expected.py` | the features, their right outcomes, and which SDK lacks or cannot see what |
| `programs.py` | runs the programs |
| `python/` | the programs for PyPI's pulsar-client |
| `tests/java/.../PulsarFeatures.java` and `Features*.java` | the programs for Java |
| `tests/go/` | the programs for Go |

**A program.** Options: `--url`, `--feature`, `--topic` (a new topic; names of others are its name and a suffix), `--listener`
(name of an advertised listener) and `--keys` (a folder with `public.pem` and `private.pem`). It prints JSON lines:
`{"do": "cut"}` asks the harness to break all its connections, and the harness answers with a line on stdin; the last line is
`{"outcome": {...}}`. Anything else goes to stderr. A program that fails exits with a status other than 0.

**The server.** It must create topics that are used, acknowledge inside batches, and limit messages to 5 MiB. Features with
`partitions` need `create_partitioned`, those with `deduplicates` a namespace that deduplicates. If a feature has `cuts`, its
program connects through a proxy, and every address in the server's responses must lead to that proxy: give `proxied_port` and
`listener_name` if the server has to know them when it starts (`Pulsar(proxied_port=...)`), and neither if it answers look-ups
with `proxy_through_service_url`.

**Node.** There are no programs for the `pulsar-client` of npm: its native part is not in the package, but downloaded from outside
the registry or compiled against an installed libpulsar.
"""

from tests.sdk.features.expected import FEATURES, TOPICS, Feature, expected_outcome, features_of
from tests.sdk.features.programs import LANGUAGES, FeatureError, missing, outcome_of, wrong_outcomes

__all__ = [
    "FEATURES", "LANGUAGES", "TOPICS", "Feature", "FeatureError", "expected_outcome", "features_of", "missing", "outcome_of",
    "wrong_outcomes",
]  # fmt: skip
