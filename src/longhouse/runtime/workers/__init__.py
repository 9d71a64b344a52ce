"""The processes that work: claims, heartbeats, takeovers, instances."""
