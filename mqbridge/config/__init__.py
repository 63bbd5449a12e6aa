"""The configuration: its options, reading and checking a file, the JSON Schema and the reference page.

    options/                                 each option once: type, default, description and checks; one file per group
    base  units  patterns  templates         building blocks of options: base model, units, name patterns and templates
    document  system_options  cross_checks   convert a YAML text to models and collect every problem; `load` runs the passes,
    explain  problems  load                  `explain` rewrites pydantic's errors
    schema  reference                        published output: the JSON Schema, docs/reference/configuration.md
    cluster_choice  profiles  urls           clusters of commands outside of routes: by name, by profile or by URL

Code that implements an option gets its model (`routing` for the rules, `gateway` for the others), so nothing here imports that
code.
"""
