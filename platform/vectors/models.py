"""What is kept of a saved Steering vector."""

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Lower

from accounts.models import User
from billing.models import MODEL_ID_LENGTH

NAME_LENGTH = 60
ORIGIN_LENGTH = 200
ITEM_BYTES = 4
"""Bytes of a float32."""


class Origin(models.TextChoices):
    """Where the numbers of a vector came from."""

    FILE = "file"
    PASTED = "pasted"
    RUN = "run"
    SAVED = "saved"


class SavedVectorQuerySet(models.QuerySet["SavedVector"]):
    """Reads of saved vectors."""

    def of(self, user_id: uuid.UUID) -> "SavedVectorQuerySet":
        """Return the vectors of a User."""
        return self.filter(user_id=user_id)

    def listed(self) -> "SavedVectorQuerySet":
        """Return vectors by name, without their numbers."""
        return self.defer("numbers").order_by(Lower("name"), "id")


class SavedVector(models.Model):
    """One row of float32 numbers for each Layer, with the settings that it is added with.

    `numbers` are `[len(layers), width]` as little-endian float32 in C order, and `digest` is the
    SHA-256 of these bytes in hex: what the saved name stands for can be checked without us.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=NAME_LENGTH)
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    """The model's id in the catalogue for which it was saved."""
    layers = ArrayField(models.PositiveSmallIntegerField())
    width = models.PositiveIntegerField()
    """Numbers of a row: the hidden size of the model."""
    numbers = models.BinaryField()
    size = models.GeneratedField(
        expression=Func("numbers", function="octet_length"),
        output_field=models.IntegerField(),
        db_persist=True,
    )
    """Bytes of the numbers."""
    digest = models.CharField(max_length=64)
    scale = models.FloatField()
    norm_match = models.BooleanField()
    spans = models.JSONField(null=True)
    """Positions as `[[start, end], ...]`, ascending, `end` not among them; None is every one."""
    origin = models.CharField(max_length=8, choices=Origin)
    origin_name = models.CharField(max_length=ORIGIN_LENGTH, blank=True)
    """The name of the file, the number of the Run, or the name of the saved vector."""
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager["SavedVector"]] = SavedVectorQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint("user", Lower("name"), name="vector_name_once"),
            models.CheckConstraint(
                condition=Q(
                    size=F("width")
                    * ITEM_BYTES
                    * Func("layers", function="cardinality", output_field=models.IntegerField())
                )
                & Q(size__gt=0),
                name="vector_row_for_each_layer",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.id}"
