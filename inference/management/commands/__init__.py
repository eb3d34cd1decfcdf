"""Commands for the operator of the models."""
