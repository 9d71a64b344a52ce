"""What a request to a model is composed of."""
