"""Finding tools and agents by what they do: text as terms, the ranking, the index, and what is offered."""
