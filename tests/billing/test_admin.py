"""The admin shows tokens and changes none of them."""

import pytest
from django.urls import reverse

from accounts.models import User
from billing.grants import grant_to_key
from billing.models import Account, DailyUsage, Entry, Hold, KeyBudget, Owner
from tests.accounts.factory import make_key
from tests.billing.factory import make_user_with, pay, take

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("model", [Account, KeyBudget, Hold, Entry, DailyUsage, Owner])
def test_rows_are_shown_and_cannot_be_changed(client, lease, model):
    user = make_user_with(allowance=100, budget=10)
    key, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=50, by=user.id)
    pay(take(user, 10, lease, key_id=key.id), lease, 4)
    client.force_login(User.objects.create_superuser("root@example.org"))
    name = f"admin:billing_{model._meta.model_name}"
    row = model.objects.first()
    before = model.objects.filter(pk=row.pk).values().get()
    assert client.get(reverse(f"{name}_changelist")).status_code == 200
    page = reverse(f"{name}_change", args=[row.pk])
    assert client.get(page).status_code == 200
    assert client.post(page, {}).status_code == 403
    assert client.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert client.get(reverse(f"{name}_add")).status_code == 403
    assert model.objects.filter(pk=row.pk).values().get() == before
