"""The configuration: its options, reading and checking a file, the JSON Schema and the reference page.

    options/                                 each option once: type, default, description, and its checks; a file per group
    base  units  patterns  templates         building blocks of options: base models, units, and the small languages in texts
    document  system_options  cross_checks   from a YAML text to models, with every problem; `load` runs the passes,
    explain  problems  load                  `explain` words pydantic's errors
    schema  reference                        published output: the JSON Schema, docs/reference/configuration.md

Code that obeys an option takes its model (`routing` for the rules, `gateway` for the rest), so nothing here imports that code.
"""
