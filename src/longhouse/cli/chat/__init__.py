"""`longhouse chat`: a chat in the terminal, over the same API that every client uses."""
