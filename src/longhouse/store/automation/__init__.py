"""What happens by itself: webhooks and schedules."""
