"""The one HTTP client for outgoing requests."""
