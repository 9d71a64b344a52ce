"""Session routes: read, follow, answer, cancel, delete."""
