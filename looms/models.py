"""What Looms are kept as: the tree, how each Node came to be, its history, and what is looked at.

Rows of a Loom are changed under its own row's lock, which each change takes first, so that two
changes at once never meet half-way. Deleted rows are marked, and erased later (C-639).
"""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q

from accounts.models import ApiKey, User
from billing.models import MODEL_ID_LENGTH
from jobs.models import Work
from looms.tree import Status

TITLE_LENGTH = 120
"""Code points of a title at most (C-539)."""


class LoomQuerySet(models.QuerySet["Loom"]):
    """Reads of Looms."""

    def of(self, user_id: uuid.UUID) -> "LoomQuerySet":
        """Return the Looms of a User that are not deleted (C-520, C-582)."""
        return self.filter(user_id=user_id, deleted_at=None)

    def listed(self) -> "LoomQuerySet":
        """Return them in the list's order: newest pin first, then the last change (C-534)."""
        return self.order_by(
            models.F("pinned_at").desc(nulls_last=True), "-changed_at", "-created_at"
        )


class Loom(models.Model):
    """One tree of continuations."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="looms", db_index=False)
    title = models.CharField(max_length=TITLE_LENGTH, blank=True)
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()
    """The last change that a person made; a pin is none (C-535)."""
    pinned_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)
    next_number = models.PositiveIntegerField(default=0)
    """The number of the next Node."""
    revision = models.BigIntegerField(default=0)
    """Counts what readers can see: each change, and each growth of a Node."""
    branch_options = models.TextField(null=True)  # noqa: DJ001 -- None is "no Branch yet"
    """JSON of what the last Branch asked for (C-584, A-324)."""
    branch_nodes = models.PositiveSmallIntegerField(default=0)
    """How many Nodes the last Branch made."""
    undo = models.BigIntegerField(null=True)
    """The `Change` that would be undone next; it may have been erased by now."""
    redo = models.BigIntegerField(null=True)
    """The `Change` of kind undo that would be taken back next."""

    objects: ClassVar[LoomQuerySet] = LoomQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(branch_options=None, branch_nodes=0)
                | Q(branch_options__isnull=False, branch_nodes__gte=1),
                name="loom_last_branch_whole",
            )
        ]
        indexes = [
            models.Index(
                models.F("user"),
                models.F("pinned_at").desc(nulls_last=True),
                models.F("changed_at").desc(),
                models.F("created_at").desc(),
                condition=Q(deleted_at=None),
                name="loom_listed_by_user",
            ),
            models.Index(
                fields=["deleted_at"],
                condition=Q(deleted_at__isnull=False),
                name="loom_deleted",
            ),
        ]

    def __str__(self) -> str:
        return f"Loom {self.id}"


STATUSES = [(status.value, status.value.capitalize()) for status in Status]


class NodeQuerySet(models.QuerySet["Node"]):
    """Reads of Nodes."""

    def alive(self) -> "NodeQuerySet":
        """Return the Nodes that are in their tree."""
        return self.filter(deleted_at=None)

    def growing(self) -> "NodeQuerySet":
        """Return the Nodes that are queued or running."""
        return self.alive().filter(status__in=(Status.QUEUED, Status.RUNNING))


class Node(models.Model):
    """One text of a tree, written or grown, and how it came to be.

    `number` never changes and is never given again. `changed` is the Loom's revision at the last
    change of the status or the text.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    loom = models.ForeignKey(Loom, on_delete=models.CASCADE, related_name="nodes", db_index=False)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="children")
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=16, choices=STATUSES, default=Status.COMPLETED.value)
    text = models.TextField(blank=True)
    logprobs = models.TextField(null=True)  # noqa: DJ001 -- None is "there are none"
    """JSON of the four lists, as its readers get them."""
    sample = models.BinaryField(null=True)
    """The packed `looms.tokens.Sample`: the tokens that were drawn."""
    options = models.TextField(null=True)  # noqa: DJ001 -- None is "written, not grown"
    """JSON of the Branch options it was sampled with."""
    error = models.TextField(null=True)  # noqa: DJ001 -- None is "it did not fail"
    """JSON of the error object of a Node that failed."""
    text_modified = models.BooleanField(default=False)
    context_modified = models.BooleanField(default=False)
    slice_offset = models.BigIntegerField(null=True)
    slice_end = models.BigIntegerField(null=True)
    changed = models.BigIntegerField(default=0)
    made_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True)

    # Where it came from.
    model = models.CharField(max_length=MODEL_ID_LENGTH, blank=True)
    """The id of the model that grew it."""
    identity = models.CharField(max_length=255, blank=True)
    """Which weights those were: source, revision and digest."""
    finish_reason = models.CharField(max_length=32, blank=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    chosen_at = models.DateTimeField(null=True)
    """When somebody first went on from it rather than from a sibling."""

    objects: ClassVar[NodeQuerySet] = NodeQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["loom", "number"], name="node_number_once"),
            models.CheckConstraint(
                condition=Q(status__in=[status.value for status in Status]), name="node_status"
            ),
            models.CheckConstraint(
                condition=Q(error=None) | Q(status=Status.FAILED), name="node_error_when_failed"
            ),
            models.CheckConstraint(
                condition=~Q(parent=models.F("id")), name="node_not_its_own_parent"
            ),
        ]
        indexes = [
            models.Index(fields=["loom", "changed"], name="node_by_change"),
            models.Index(
                fields=["deleted_at"], condition=Q(deleted_at__isnull=False), name="node_deleted"
            ),
        ]

    def __str__(self) -> str:
        return f"Node {self.number} of {self.loom_id}"


class Growth(Work):
    """The work that grows one Node: it waits, holds, runs and pays by this row.

    The Node's own `status` is written with it, in the same transactions (`looms.growth`).
    """

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="growth")

    objects: ClassVar[models.Manager["Growth"]]

    class Meta(Work.Meta):
        pass


class ChangeKind(models.TextChoices):
    """What a person did to a Loom."""

    BRANCH = "branch"
    EDIT = "edit"
    SPLIT = "split"
    SIBLING = "sibling"
    ROOT = "root"
    DELETE = "delete"
    RENAME = "rename"
    UNDO = "undo"
    REDO = "redo"


class Change(models.Model):
    """One change of a Loom; rows are only ever added, and erased when they are old.

    `delta` says what it made of each Node (`looms.history`). An undo and a redo name the change
    that they are `of`. `below` is what lay under this one on its stack when it was put there: on
    the stack of what can be undone, or, for an undo, of what can be done again. So both stacks can
    be walked without a row ever changing. Both may name a row that has been erased.
    """

    loom = models.ForeignKey(Loom, on_delete=models.CASCADE, related_name="changes")
    kind = models.CharField(max_length=16, choices=ChangeKind)
    delta = models.TextField()
    of = models.BigIntegerField(null=True)
    below = models.BigIntegerField(null=True)
    key = models.ForeignKey(
        ApiKey, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    """The API key by which it was made; None for one made in the App."""
    made_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.kind} of {self.loom_id}"


class ViewState(models.Model):
    """What a person looks at in a Loom: no part of the tree, of its history or of its files."""

    loom = models.OneToOneField(
        Loom, primary_key=True, on_delete=models.CASCADE, related_name="view_state"
    )
    selected = models.UUIDField(null=True)
    """The Node that is read."""
    folded = models.JSONField(default=list)
    """Ids of the Nodes whose children are hidden."""

    def __str__(self) -> str:
        return f"view of {self.loom_id}"
