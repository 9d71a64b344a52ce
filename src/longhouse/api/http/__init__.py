"""How requests come in and answers go out."""
