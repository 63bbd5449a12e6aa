"""The Spark integration: a data source for every system, mirrors, and stream operators."""
