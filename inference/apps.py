"""The inference room."""

from django.apps import AppConfig


class InferenceConfig(AppConfig):
    """Catalogue, tokenizers, the client and the engine workers."""

    name = "inference"
    verbose_name = "Inference"
