"""Commands about tokens."""
