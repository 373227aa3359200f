from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("kb", "0026_api_key_made_with"),
    ]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="rate_limit_granted",
            field=models.BooleanField(
                db_default=False, editable=False, verbose_name="rate limit granted by an operator"
            ),
        ),
    ]
