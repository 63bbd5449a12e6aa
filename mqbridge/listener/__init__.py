"""What the servers of all protocols share: feeds of stored messages to consumers, and publishers of received ones.

A server has no socket and no storage: frames come in, calls of these services follow, frames go out.
"""
