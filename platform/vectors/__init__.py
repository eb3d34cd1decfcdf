"""Steering vectors that Users saved by name."""
