"""Each option of a configuration, declared once: one file per option group, with the checks of the group.

    config                   the whole file
    cluster                  clusters.NAME; each adapter declares the options of its system in its module `config`
    route                    routes[]
    source  target           routes[].from, routes[].to
    filter                   routes[].filter
    partition_rule  edit     routes[].to.partitions, routes[].to.edit
    delivery                 routes[].delivery, with retry and dead_letter
    create_rule              routes[].to.create
    listener                 listeners[], with create, sends and limits
    http  reload  log        the process itself

A new option in a group needs its declaration here, the code that implements it, and `make generate` for the docs. Code that
handles messages is in `routing/` (filter, edit, partition_rule) or `delivery/` (delivery). `routes/route.py`, and for a mirror on
Spark `spark/transfer/transfer.py`, pass the options to it. The counters that this code increments are declared in
`delivery/counters.py`.
"""
