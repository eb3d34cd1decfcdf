"""Settings and the processes' doors: nothing below imports this package.

The Celery application is made with the settings, so that every process has it as its default.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
