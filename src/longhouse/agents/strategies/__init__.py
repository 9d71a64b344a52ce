"""How agents think: one module for each strategy, and what they share."""
