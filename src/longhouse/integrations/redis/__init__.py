"""Redis: conversation histories under well-known keys."""
