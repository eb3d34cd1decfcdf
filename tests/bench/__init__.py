"""Benchmarks, run by name with `script/bench`."""
