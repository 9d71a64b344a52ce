"""Longhouse: a self-hosted server for AI agents that live long and forget nothing."""

__version__ = "0.1.0"
