"""What an admin gives: tokens for a Budget or a key's Budget, and a User's own allowance."""

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from accounts.models import ApiKey
from billing.ledger import Books
from billing.models import Account, EntryKind


def grant(
    *, user_id: UUID, tokens: int, by: UUID | None, kind: EntryKind = EntryKind.GRANT
) -> None:
    """Add `tokens`, at least 1, to a User's Budget (C-324).

    `by` is the admin, or None for a command on the server; `kind` is `GRANT`, or `INVITE` for the
    tokens of an Invite.
    """
    with transaction.atomic():
        books = Books.lock(user_id, timezone.now())
        books.move_budget(tokens, kind, by=by)
        books.write()


def set_budget(*, user_id: UUID, tokens: int, by: UUID | None) -> None:
    """Make `tokens`, at least 0, what a User's Budget has left (C-324, A-419).

    That is the number which pages show, without open Holds; what those give back is added later.
    """
    with transaction.atomic():
        books = Books.lock(user_id, timezone.now())
        books.move_budget(tokens - books.totals.budget_left, EntryKind.SET, by=by)
        books.write()


def set_allowance(*, user_id: UUID, tokens: int | None) -> None:
    """Give a User an allowance of their own for this and later months (C-316, A-420).

    0 is a User without any; None is the deployment's `monthly_allowance` again.
    """
    with transaction.atomic():
        Books.lock(user_id, timezone.now())
        Account.objects.filter(user=user_id).update(allowance=tokens)


def set_allowance_of_many(*, user_ids: Sequence[UUID], tokens: int | None) -> None:
    """Give Users an allowance of their own, as `set_allowance` does for one (A-427)."""
    with transaction.atomic():
        Account.objects.bulk_create(
            [Account(user_id=user_id, allowance=tokens) for user_id in sorted(user_ids)],
            batch_size=1_000,
            update_conflicts=True,
            unique_fields=["user"],
            update_fields=["allowance"],
        )


def grant_to_key(*, key_id: UUID, tokens: int, by: UUID | None) -> None:
    """Add `tokens`, at least 1, to a key's own Budget; the first Grant makes it (A-440)."""
    with transaction.atomic():
        books = Books.lock(_user_of(key_id), timezone.now(), key_id=key_id)
        books.move_key_budget(tokens, EntryKind.GRANT, by=by)
        books.write()


def set_key_budget(*, key_id: UUID, tokens: int, by: UUID | None) -> None:
    """Make `tokens`, at least 0, what a key's own Budget has left, as `set_budget` does."""
    with transaction.atomic():
        books = Books.lock(_user_of(key_id), timezone.now(), key_id=key_id)
        books.move_key_budget(tokens - (books.totals.key_left or 0), EntryKind.SET, by=by)
        books.write()


def _user_of(key_id: UUID) -> UUID:
    return ApiKey.objects.values_list("user_id", flat=True).get(id=key_id)
