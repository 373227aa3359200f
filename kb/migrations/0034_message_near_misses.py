from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0033_evalrun_lease'),
    ]

    operations = [
        migrations.AddField(
            model_name='message',
            name='near_misses',
            field=models.JSONField(blank=True, db_default=[], default=list, verbose_name='near misses'),
        ),
    ]
