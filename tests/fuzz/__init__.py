"""Schemathesis against the served document."""
