"""The chaos test: `make chaos` kills real processes at work and checks what their journals say afterwards."""
