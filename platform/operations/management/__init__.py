"""Commands of whoever keeps an instance."""
