"""The JSON bodies of requests and answers.

Written as standard JSON in the order of the names, which every client and server reads; read as fastjson reads, by `lenient`.
Plain data goes in and out: no body refers to a connection, a clock or a client.
"""
