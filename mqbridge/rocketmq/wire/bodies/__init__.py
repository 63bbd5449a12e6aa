"""The JSON bodies of requests and responses: plain data classes.

Encoded as standard JSON in the order of the names, which every client and server reads; decoded by `fastjson`, which accepts
everything that Java's fastjson accepts.
"""
