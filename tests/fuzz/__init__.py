"""Coverage-guided fuzzing of everything that reads bytes from a server: only protocol errors come out, memory stays flat.

`make fuzz` runs it (`python -m tests.fuzz --help`); `test_targets.py` replays seeds and former finds without any fuzzer.
"""
