"""Filters of the App's templates."""
