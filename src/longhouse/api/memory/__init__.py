"""Routes of what agents remember."""
