"""For those who watch: metrics, statistics, usage."""
