"""Totals in a database that count each record once: ``totals.py``."""
