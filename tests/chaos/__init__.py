"""A chaos run: two instances of the gateway between real servers, faults drawn from a seed, and a judge that reads the targets.

`make chaos SEED=7 SECONDS=60 DIRECTION=pulsar-rocketmq`; see docs/explanation/chaos.md.

schedule   what happens when, drawn from a seed
faults     what each fault does
systems    what is special to TubeMQ, Pulsar and RocketMQ here
flow       messages that come all the while, and what the source acknowledged
instance   one gateway process through all its lives
world      all of these together
ending     from the last fault to the last message
judge      what a right target is
run        one run from its schedule to its result
page       the results of several runs in docs/explanation/chaos.md
"""
