import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("kb", "0014_reembedding")]

    operations = [
        migrations.AddField("ingestbatch", "notes", models.JSONField(default=list, editable=False)),
        migrations.AddField("ingestbatch", "note_count", models.PositiveIntegerField(default=0, editable=False)),
        migrations.CreateModel(
            name="FileDetails",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=1000)),
                ("title", models.CharField(blank=True, max_length=500)),
                (
                    "tags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=60), default=list, size=None
                    ),
                ),
                ("metadata", models.JSONField(default=dict)),
                (
                    "batch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="details", to="kb.ingestbatch"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("batch", "name"), name="file_details_once")],
            },
        ),
    ]
