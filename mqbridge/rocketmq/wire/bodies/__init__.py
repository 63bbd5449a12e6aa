"""The JSON bodies of requests and responses, as data classes.

Bodies are encoded as standard JSON, with members in the order of their names, which every client and server reads. They are
decoded by `fastjson`, because Java's fastjson library also writes JSON that is not standard.
"""
