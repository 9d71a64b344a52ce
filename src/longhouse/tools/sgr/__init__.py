"""Compatibility types and services under the names that tools of SGR-Agent Core use."""
