"""Storage faults: the embedded log is killed, cut off, damaged and moved, and a judge reads what is left of it.

`make log-faults SEED=7 FAULTS=1000 ONLY=kill,bits`

schedule    the kinds of faults, and the faults of a run, drawn from a seed
kinds       one module for each kind of fault
scene       the folder of a fault, and the way from a log after a fault to a verdict
workload    the work of a process on a log
members     the part of it that reads as a member of a group
history     the records of these processes
messages    payloads that tell which message they belong to
inspection  reads a log in a fresh process after a fault
judge       the rules that a log must fulfil after a fault
trace       a library (`trace.c`) that records or refuses the writes of a process
images      the files of a log after a power failure
worker      a process that executes faults
run         all faults of a run, in several workers
report      the results as text
"""
