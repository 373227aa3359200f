from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("kb", "0030_web_page_changes")]

    operations = [
        migrations.AlterModelOptions(
            name="evalrunquery",
            options={
                "ordering": ("pk",),
                "verbose_name": "measured query",
                "verbose_name_plural": "measured queries",
            },
        ),
    ]
