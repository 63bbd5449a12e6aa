"""A system that lives in this process: the contract in its smallest form, with faults on demand for tests."""
