"""Words for people: questions, decisions, titles."""
