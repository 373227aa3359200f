import django.db.models.deletion
from django.db import migrations, models

FROM_THE_AUDIT_LOG = """
UPDATE kb_apikey made SET made_with_id = maker.id
FROM kb_auditentry entry JOIN kb_apikey maker ON maker.prefix = entry.api_key
WHERE entry.object_type = 'api_key' AND entry.action = 'create' AND entry.object_id = made.prefix
    AND maker.user_id = made.user_id AND maker.id <> made.id
"""


class Migration(migrations.Migration):
    dependencies = [
        ("kb", "0025_store_follows_language"),
    ]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="made_with",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="made",
                to="kb.apikey",
                verbose_name="made with",
            ),
        ),
        migrations.RunSQL(FROM_THE_AUDIT_LOG, migrations.RunSQL.noop),
    ]
