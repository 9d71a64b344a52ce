"""Makes the table of embeddings that ships with Longhouse: see README.md here. No part of the program imports it."""
