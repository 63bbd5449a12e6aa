"""The kinds of faults, one module each: `run` executes the faults of a scene."""
