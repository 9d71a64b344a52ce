"""What a journal tells of calls."""
