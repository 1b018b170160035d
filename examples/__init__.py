"""Programs to copy. Nothing in the package imports them."""
