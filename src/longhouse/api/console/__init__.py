"""The console: its pages and files, and how a browser signs in."""
