"""Commands of the web process."""
