import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

FINAL = """
CREATE FUNCTION accounts_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %: this row is final', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER accounts_adminaction_final BEFORE UPDATE OR DELETE ON accounts_adminaction
    FOR EACH ROW EXECUTE FUNCTION accounts_refuse();
"""

NOT_FINAL = """
DROP TRIGGER accounts_adminaction_final ON accounts_adminaction;
DROP FUNCTION accounts_refuse();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0003_link_asks'),
    ]

    operations = [
        migrations.CreateModel(
            name='AdminAction',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('action', models.CharField(max_length=100)),
                ('kind', models.CharField(max_length=64)),
                ('target_id', models.CharField(max_length=64)),
                ('details', models.CharField(blank=True, max_length=1000)),
                ('by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'indexes': [models.Index(fields=['kind', 'target_id', '-id'], name='admin_action_of_target')],
            },
        ),
        migrations.RunSQL(FINAL, NOT_FINAL),
    ]
