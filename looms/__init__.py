"""Looms: trees of continuations.

Nothing is here yet but the name: the tree, its edits, its growth and its files come with the
Loom routes.
"""
