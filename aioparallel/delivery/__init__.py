"""What leaves: produced records, dead letters, retry topics."""
