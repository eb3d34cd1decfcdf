"""Reads of the residual stream to files: many prompts, chosen Layers, no generation.

The package knows neither Django nor anything else of ours but the engine's loading and attention.
`run.harvest` is its one door.
"""
