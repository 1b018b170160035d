"""Contestants in this checkout: each module is a program of its own, see ``contestant.py``."""
