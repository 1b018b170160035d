"""Contestants in this checkout: each module is a program, see ``contestant.py``."""
