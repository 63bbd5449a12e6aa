"""Producers that send encoded messages to named queues."""
