"""Runs a gateway for the commands that do: their signals, logs and summary lines."""
