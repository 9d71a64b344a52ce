"""A whole house in one file."""
