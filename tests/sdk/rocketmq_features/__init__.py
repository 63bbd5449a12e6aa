"""Features of RocketMQ, each as a small program of an official SDK, which judge any server that speaks RocketMQ's protocol.

`outcome_of(feature, language, name_servers)` runs one program and returns its outcome; `expected.py` has the one outcome that is
right for all SDKs and servers. So an outcome has no value that differs by nature, such as an id or a time, but relations.

| file | content |
|---|---|
| `expected.py` | the features, their right outcomes, and which SDK lacks or cannot see what |
| `programs.py` | runs the programs |
| `tests/java/.../RocketFeatures*.java` | the programs for Java, one source for both releases of the client |
| `tests/go/rocketmq/` | the programs for Go |
| `cpp.py` | the programs for C++, by the Python package that has the library in it |

**A program.** Options: `--name-servers`, `--feature`, `--topic` and `--group` (new names; others are these and a suffix),
`--folder` (a temporary folder) and `--deadline` (seconds after which it ends itself). Its last line is `{"outcome": {...}}`.
Anything else goes to stderr. A program that fails exits with a status other than 0.

**The server.** Topics with 4 queues exist before a program starts: `create_topic` creates them. So do retry topics of groups that
need one (`create_group`), or the server has them in its routes at once. Dead-letter topics can be read.
"""

from tests.sdk.features.programs import FeatureError
from tests.sdk.rocketmq_features.expected import FEATURES, SMOKE_TESTED, TOPICS, expected_outcome, features_of
from tests.sdk.rocketmq_features.programs import LANGUAGES, missing, outcome_of, wrong_outcomes

__all__ = [
    "FEATURES", "LANGUAGES", "SMOKE_TESTED", "TOPICS", "FeatureError", "expected_outcome", "features_of", "missing", "outcome_of",
    "wrong_outcomes",
]  # fmt: skip
