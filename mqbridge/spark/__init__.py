"""The bulk pipeline on Spark: a data source of every system, mirrors, and stream operators."""
