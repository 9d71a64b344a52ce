"""Projections of the journals to other systems: Redis, session logs, agent logs."""
