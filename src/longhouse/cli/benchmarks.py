"""`longhouse bench …`: the measurements of search and of recall."""

from longhouse.cli import bench_recall, bench_search

cli = bench_search.cli
cli.command()(bench_recall.recall)
