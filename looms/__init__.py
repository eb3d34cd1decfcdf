"""Looms: trees of continuations that models grow and people cut, write and keep."""
