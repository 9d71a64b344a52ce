"""Processes of their own for Python tools: what a tool does to its process is a fault of its call, and nothing else."""
