"""The part of a process that works: claims, heartbeats, takeovers, instances."""
