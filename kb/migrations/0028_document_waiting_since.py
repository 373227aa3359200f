import django.db.models.functions.datetime
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("kb", "0027_api_key_rate_limit_granted"),
    ]

    operations = [
        migrations.AddField(
            model_name="document",
            name="waiting_since",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                default=django.utils.timezone.now,
                editable=False,
            ),
        ),
    ]
