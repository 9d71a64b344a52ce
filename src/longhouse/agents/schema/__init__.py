"""JSON Schema: references followed, choices flattened, strict output, and what a schema says in words."""
