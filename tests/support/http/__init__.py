"""A service to be asked."""
