"""JSON Schema: resolve references, flatten alternatives, convert to strict output, describe in words."""
