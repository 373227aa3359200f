from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("kb", "0007_fill_profiles_and_judgments")]

    operations = [
        # Above 2 kB a row is compressed unless the table says otherwise; vectors of the hashing embedder, mostly zeros,
        # were, and an exact scan spent five sixths of its time to expand them. Rows that are there stay as they are.
        migrations.RunSQL(
            "ALTER TABLE kb_chunkembedding SET (toast_tuple_target = 8160)",
            "ALTER TABLE kb_chunkembedding RESET (toast_tuple_target)",
        ),
    ]
