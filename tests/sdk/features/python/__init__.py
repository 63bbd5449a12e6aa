"""The features of Pulsar as programs of the official Python client, one process per feature: see tests/sdk/features."""
