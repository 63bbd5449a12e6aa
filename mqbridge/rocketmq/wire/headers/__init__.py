"""The custom headers of requests and answers: text by name on the wire, typed fields here.

A class says a header once, and reads and writes it: the client's out is the listener's in. A field without a default has to be
there; one that is None is not written. The name on the wire is the field's own in camel case, where `named` says no other.
Names are also found in another case (Go clients write `Topic` and `QueueId`).
"""
