"""The configuration: its models, how a file is read and checked, its JSON Schema and its reference."""
