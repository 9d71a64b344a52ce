"""Agent strategies: one module for each, and their shared code."""
