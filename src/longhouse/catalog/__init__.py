"""The catalog as a service: what may be published, by whom, and what operators decide; for API, CLI and files."""
