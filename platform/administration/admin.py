"""Registers the pages of the admin, and takes away those of libraries that would go around it."""

from contextlib import suppress

from allauth.account.models import EmailAddress, EmailConfirmation
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django.contrib.auth.models import Group
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)

from administration import api_keys, applications, records, requests, users, work

__all__ = ["api_keys", "applications", "records", "requests", "users", "work"]

for foreign in (
    Group,
    EmailAddress,
    EmailConfirmation,
    Authenticator,
    SocialAccount,
    SocialApp,
    SocialToken,
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
):
    with suppress(NotRegistered):
        admin.site.unregister(foreign)
