"""The configuration: its options, reading and checking a file, the JSON Schema and the reference page.

    options/                                 each option once: type, default, description and checks; one file per group
    base  units  patterns  templates         building blocks of options: base model, units, name patterns and templates
    load                                     reads a file in four passes, and reports all problems at once:
    document  system_options  cross_checks   the passes, besides the validation by pydantic
    listener_checks  listened_systems        checks of listeners, and what they need to know of the servers
    explain  problems                        convert pydantic's errors, and collect the problems
    schema  reference                        published output: the JSON Schema, docs/reference/configuration.md
    cluster_choice  profiles  urls           choose the cluster of a command that uses no route: by name, by profile or by URL

Code that implements an option gets its model (`routing` for the rules, `gateway` for the others), so nothing here imports that
code.
"""
