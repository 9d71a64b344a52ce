"""The catalog service: validation, publishing, versions and operators' security overlays, for API, CLI and files."""
