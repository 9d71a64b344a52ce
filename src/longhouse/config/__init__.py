"""Configuration: settings and YAML files, checked and merged."""
