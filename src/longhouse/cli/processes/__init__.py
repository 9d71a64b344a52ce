"""The processes that stay: `longhouse serve`, `work` and `dev`."""
