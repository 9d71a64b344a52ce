"""Projections of the journals to elsewhere: Redis, session logs, agent logs."""
