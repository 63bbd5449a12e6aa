"""Test doubles: the memory system, which injects faults."""
