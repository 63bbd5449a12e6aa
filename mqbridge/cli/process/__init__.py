"""Event loop, logging and exit codes of the process."""
