"""Lanes, tickets, budgets, dead letters and checkpoints: what must be stored before a source message is acknowledged."""
