"""Benchmarks: honest, repeatable, compared in one run. `make bench` runs them all."""

import longhouse  # noqa: F401 - it says how numpy is to work, which must be said before numpy is read
