"""Chaos runs: two instances of the gateway between real servers, random faults, and a judge that reads the targets.

`make chaos SEED=7 SECONDS=60 DIRECTION=pulsar-rocketmq`; see docs/explanation/chaos.md.

schedule   the faults of a run and their times, drawn from a seed
faults     one function for each kind of fault
systems    code that is special to TubeMQ, Pulsar, RocketMQ and the log
flow       a producer that sends during the whole run, and the number of acknowledged messages
instance   one instance of the gateway, with all its restarts
world      systems, flows and instances of a run together
ending     from the last fault to the last message
judge      the rules that a target must fulfil
soak       the schedule of a long run with faults at fixed times
run        one run from its schedule to its result
page       the results of several runs in docs/explanation/chaos.md
"""
