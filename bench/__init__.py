"""Benchmarks: honest, repeatable, compared in one run. `make bench` runs them all."""
