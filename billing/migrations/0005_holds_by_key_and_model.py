from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Indexes of a table that is written all the time: made without locking it."""

    atomic = False

    dependencies = [
        ('billing', '0004_requests_for_tokens'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='hold',
            index=models.Index(condition=models.Q(('key__isnull', False), models.Q(('state', 'released'), _negated=True)), fields=['key', '-opened_at'], name='hold_listed_by_key'),
        ),
        AddIndexConcurrently(
            model_name='hold',
            index=models.Index(condition=models.Q(('state', 'released'), _negated=True), fields=['user', 'model', '-opened_at'], name='hold_listed_by_model'),
        ),
    ]
