"""`longhouse bench …`."""
