"""What operators do once or now and then."""
