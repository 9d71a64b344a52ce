"""Longhouse: a self-hosted server for AI agents that live long and forget nothing."""

import os

__version__ = "0.1.0"

# Our matrices are small: threads for them cost a core that spins, and bring nothing. It must be said before numpy is
# read, so it is said here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
