"""The paths that users of SGR-Agent Core know."""
