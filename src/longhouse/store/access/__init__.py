"""Who comes in: keys, signed-in browsers, permits."""
