"""Makes `format("mqbridge")` available: Spark imports every package named `pyspark_*` and registers its `DefaultSource`.

An error here would disable the formats of all such packages. A failed import is therefore ignored, and Spark then reports that
`format("mqbridge")` is not found.
"""

from contextlib import suppress

with suppress(Exception):
    from mqbridge.spark.data_source import MqbridgeDataSource as DefaultSource

__all__ = ["DefaultSource"]
