"""Routes that are compatible with SGR-Agent Core."""
