"""People and their API keys."""
