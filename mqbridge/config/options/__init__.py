"""Each option of a configuration, declared once: one file per group of options, with its checks beside it.

    config                   the whole file
    cluster                  clusters.NAME; its system's own options are declared by the system, in its adapter's `config`
    route                    routes[]
    source  target           routes[].from, routes[].to
    filter                   routes[].filter
    partition_rule  edit     routes[].to.partitions, routes[].to.edit
    delivery                 routes[].delivery, with retry and dead_letter
    http  reload  log        the process itself

A new option in a group needs: its declaration here, the code that obeys it, and `make generate` for the docs. Code that acts on
messages is in `routing/` (filter, edit, partition_rule) or `delivery/` (delivery), and `gateway/route.py` passes it its options;
a total that it counts is declared in `delivery/counters.py`.
"""
