"""What deletes: erasures, retention, files on this machine."""
