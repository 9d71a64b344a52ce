"""`longhouse bench …`: the measurements of search and of recall."""

from longhouse.cli.bench import recall, search

cli = search.cli
cli.command()(recall.recall)
