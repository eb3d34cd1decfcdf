"""Harvests: background reads of the residual stream to files (sections 16 and 18)."""
