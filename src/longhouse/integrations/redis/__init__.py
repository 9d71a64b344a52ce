"""Redis: histories under the keys that people know."""
