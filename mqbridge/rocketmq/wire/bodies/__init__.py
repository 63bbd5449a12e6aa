"""The JSON bodies of requests and responses, as data classes.

Bodies are encoded as standard JSON with sorted member names; every client and server can read it. They are decoded by our module
`wire/fastjson.py`, because servers and Java clients use the Java library fastjson, which also writes non-standard JSON.
"""
