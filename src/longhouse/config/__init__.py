"""Configuration: settings and YAML files, validated and merged."""
