"""`mqbridge schema`: the JSON Schema of the configuration."""

from mqbridge.cli.output.console import command, print_json


@command
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors.

    For example:

        mqbridge schema > mqbridge.schema.json

    With the first line `# yaml-language-server: $schema=mqbridge.schema.json` in the configuration file, an editor completes and
    checks it.
    """
    from mqbridge.config.schema import json_schema

    print_json(json_schema())
