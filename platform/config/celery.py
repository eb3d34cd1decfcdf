"""The Celery application: doorbells between processes, and the clock."""

from celery import Celery
from django.conf import settings

app = Celery("basalt")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.set_default()

app.conf.beat_schedule = {
    "reap": {
        "task": "operations.reap",
        "schedule": settings.BASALT.reap_seconds,
        "options": {"queue": "runner", "expires": 2 * settings.BASALT.reap_seconds},
    },
}
