"""The one HTTP client for all that leaves the house."""
