from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("kb", "0043_palette")]

    operations = [
        AddIndexConcurrently(
            model_name="document",
            index=models.Index(fields=["knowledge_base", "status", "source_type"], name="document_by_state"),
        ),
        AddIndexConcurrently(
            model_name="document",
            index=models.Index(fields=["knowledge_base"], condition=models.Q(status="failed"), name="document_failed"),
        ),
        AddIndexConcurrently(
            model_name="document",
            index=models.Index(fields=["knowledge_base", "updated_at", "id"], name="document_by_update"),
        ),
        AddIndexConcurrently(
            model_name="document",
            index=models.Index(fields=["knowledge_base", "title", "id"], name="document_by_title"),
        ),
    ]
