"""Delegations in Postgres: who works for whom, the tree of it, results and cancellation."""
