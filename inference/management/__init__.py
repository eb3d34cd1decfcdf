"""Django's management commands of the models."""
