"""What keys and templates may use, and what they have used."""
