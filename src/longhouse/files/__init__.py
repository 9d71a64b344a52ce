"""Agents as people keep them in files: YAML read, checked, and laid over what the program brings."""
