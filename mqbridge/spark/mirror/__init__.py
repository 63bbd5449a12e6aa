"""The routes of a configuration as streaming queries of Spark: a backfill, then the tail."""
