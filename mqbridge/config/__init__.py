"""The configuration: which options there are, how a file is read and checked, its JSON Schema and its reference.

    options/                                 each option once: type, default, meaning, and its checks beside it; a file per group
    base  units  patterns  templates         what options are made of: their base, and the small languages inside their texts
    document  system_options  cross_checks   from a YAML text to models, every problem named: `load` puts it together,
    explain  problems  load                  `explain` words what pydantic found
    schema  reference                        what is published, made from the models: the JSON Schema, docs/configuration.md

Code that obeys an option takes its model (`routing` does the rules, `gateway` the rest), so nothing here imports that code.
"""
