"""Schedules: prompts that come by themselves."""
