"""Handlers of many records at once."""
