"""The Celery application: doorbells between processes, and the clock."""

from celery import Celery

app = Celery("basalt")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.set_default()
