from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('kb', '0052_failed_queries_of_assistants'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='searchlog',
            index=models.Index(condition=models.Q(('assistant__isnull', False)), fields=['assistant', 'created_at'], name='searchlog_by_assistant'),
        ),
    ]
