from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("kb", "0010_web_source_runs"),
    ]

    operations = [
        migrations.AddField(
            model_name="document",
            name="chunking",
            field=models.CharField(blank=True, db_default="", editable=False, max_length=32),
        ),
        migrations.AddField(
            model_name="document",
            name="indexed_title",
            field=models.CharField(blank=True, db_default="", editable=False, max_length=500),
        ),
        migrations.RunSQL("UPDATE kb_document SET indexed_title = title WHERE status = 'ready'", migrations.RunSQL.noop),
    ]
