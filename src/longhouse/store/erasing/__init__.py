"""What is erased, when, and how nothing of it stays."""
