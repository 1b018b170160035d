"""Processes that cannot outlive us."""
