"""Commands for people at a terminal."""
