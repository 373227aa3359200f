from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("kb", "0031_measured_query_name")]

    operations = [
        migrations.RemoveConstraint(model_name="retrievalprofile", name="profile_version_once"),
        migrations.RemoveConstraint(model_name="retrievalprofile", name="profile_published_once"),
        migrations.AddConstraint(
            model_name="retrievalprofile",
            constraint=models.UniqueConstraint(
                fields=("knowledge_base", "name", "version"), name="profile_version_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="retrievalprofile",
            constraint=models.UniqueConstraint(
                condition=Q(("knowledge_base", None)), fields=("name", "version"), name="shared_profile_version_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="retrievalprofile",
            constraint=models.UniqueConstraint(
                condition=Q(("published", True)), fields=("knowledge_base", "name"), name="profile_published_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="retrievalprofile",
            constraint=models.UniqueConstraint(
                condition=Q(("knowledge_base", None), ("published", True)),
                fields=("name",),
                name="shared_profile_published_once",
            ),
        ),
    ]
