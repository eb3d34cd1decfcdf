from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """What the reports of all Users read by; made without locking tables that are written."""

    atomic = False

    dependencies = [("billing", "0005_holds_by_key_and_model")]

    operations = [
        AddIndexConcurrently(
            model_name="dailyusage",
            index=models.Index(fields=["day"], name="daily_usage_by_day"),
        ),
        AddIndexConcurrently(
            model_name="entry",
            index=models.Index(
                condition=models.Q(("hold__isnull", True)),
                fields=["-id"],
                name="entry_newest_changes",
            ),
        ),
        AddIndexConcurrently(
            model_name="hold",
            index=models.Index(
                condition=models.Q(("state", "released"), _negated=True),
                fields=["model", "-opened_at"],
                name="hold_listed_of_model",
            ),
        ),
    ]
