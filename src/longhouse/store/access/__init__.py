"""Who comes in: keys and signed-in browsers."""
