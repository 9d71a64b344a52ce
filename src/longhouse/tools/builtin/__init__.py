"""The tools that come with Longhouse."""
