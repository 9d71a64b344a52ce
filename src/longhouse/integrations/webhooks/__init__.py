"""Webhooks: what happens in sessions is found in their journals, and sent to those who asked to be told."""
