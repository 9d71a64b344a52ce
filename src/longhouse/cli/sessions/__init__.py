"""`longhouse sessions …` and `longhouse replay`."""
