from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("operations", "0001_spend_and_warm_windows")]

    operations = [
        migrations.AddField(
            model_name="spendsample",
            name="gpus",
            field=models.PositiveSmallIntegerField(null=True),
        ),
    ]
