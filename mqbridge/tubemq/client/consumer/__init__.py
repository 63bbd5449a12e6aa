"""Consumers of packs: membership of a group, held partitions, and readers of ranges."""
