"""Tests of the contracts, and the list of their rows."""
