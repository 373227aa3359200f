import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0056_jobs_in_turn'),
    ]

    operations = [
        migrations.AddField(
            model_name='chunk',
            name='parent_spans',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.PositiveIntegerField(), editable=False, null=True, size=None),
        ),
    ]
