"""Pull consumers: membership of a group, assigned queues, their pulls and commits."""
