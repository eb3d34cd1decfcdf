"""`manage.py models`: what the catalogue holds, and what of it is prepared."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference import catalogue
from inference.catalogue import CatalogueInvalid, ModelEntry
from inference.preparation import prepared, reason_not_prepared


class Command(BaseCommand):
    """List the models with their state and digests."""

    help = "List the models of the catalogue, with the identity of those that are prepared."
    requires_system_checks = []

    def handle(self, **options: object) -> None:
        """Write one paragraph for each model, in the catalogue's order."""
        try:
            models = catalogue.current().models
        except CatalogueInvalid as error:
            raise CommandError(str(error)) from error
        self.stdout.write("\n\n".join("\n".join(_paragraph(entry)) for entry in models))


def _paragraph(entry: ModelEntry) -> list[str]:
    marks: list[str] = [entry.dtype, entry.device, entry.backend.kind]
    marks += ["default"] if entry.default else []
    marks += [] if entry.enabled else ["off"]
    lines = [f"{entry.id}  {entry.served_name}  ({', '.join(marks)})"]
    if entry.source is None:
        return [*lines, "  nothing to prepare"]
    model = prepared(entry, settings.BASALT.models)
    if model is None:
        return [*lines, f"  {reason_not_prepared(entry, settings.BASALT.models)}"]
    identity = model.identity
    return [
        *lines,
        f"  revision   {identity.revision or 'none'}",
        f"  weights    {identity.weights_sha256 or 'not kept here'}",
        f"  tokenizer  {identity.tokenizer_sha256}",
        f"  prepared   {identity.prepared_at}",
    ]
