import django.contrib.postgres.indexes
import django.db.models.deletion
import kb.search.models
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("kb", "0015_batch_notes_and_file_details"),
    ]

    operations = [
        migrations.CreateModel(
            name="DuplicateScan",
            fields=[
                (
                    "knowledge_base",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="duplicate_scan",
                        serialize=False,
                        to="kb.knowledgebase",
                    ),
                ),
                ("version", models.BigIntegerField(default=0)),
                ("groups", models.JSONField(default=list)),
                ("group_count", models.PositiveIntegerField(default=0)),
                ("found_at", models.DateTimeField(null=True)),
                ("asked_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.AddField(
            model_name="chunk",
            name="own_cut",
            field=models.BooleanField(db_default=False, default=False, editable=False),
        ),
        migrations.AddIndex(
            model_name="searchlog",
            index=django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.indexes.OpClass(kb.search.models.ResultIds("trace"), name="jsonb_path_ops"),
                name="searchlog_by_result",
            ),
        ),
    ]
