"""Programs to copy from; README.md lists them."""
