"""`longhouse bench …`: the measurements of search and of recall."""

from longhouse.cli.bench import recall as bench_recall
from longhouse.cli.bench import search as bench_search

cli = bench_search.cli
cli.command()(bench_recall.recall)
