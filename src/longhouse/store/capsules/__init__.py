"""Capsules: a session with the agents that it called, in one file, and such sessions in another house, read-only.

A capsule holds what the journals hold, and what their requests were made with: the versions of templates and tools, the
files, and the texts from memory. It holds no key: catalog and journal name secrets, and never have them.
"""
