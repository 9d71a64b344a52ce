"""Delegations in Postgres: tasks given to sub-agents, the delegation tree, results and cancellation."""
