"""Found by Spark, which imports every package called `pyspark_*` and takes its `DefaultSource`.

An error in here would take the formats of all such packages away, so a missing part is left out in silence: `format("mqbridge")`
then says that it is not found.
"""

from contextlib import suppress

with suppress(Exception):
    from mqbridge.spark.data_source import MqbridgeDataSource as DefaultSource

__all__ = ["DefaultSource"]
