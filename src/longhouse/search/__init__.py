"""Search for tools and agents: tokenizer, ranking, indexer, selection of tools for a step, agent directory, router."""
