from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("kb", "0022_idempotency_keys")]

    operations = [
        AddIndexConcurrently(
            model_name="document",
            index=models.Index(fields=["knowledge_base", "created_at", "id"], name="document_by_creation"),
        ),
    ]
