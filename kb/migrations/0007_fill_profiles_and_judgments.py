from django.db import migrations
from django.db.models import Case, F, OuterRef, Subquery, Value, When
from django.db.models.functions import Coalesce


def fill(apps, _schema_editor):
    """What the new columns say of the rows that are there already."""
    document = apps.get_model("kb", "Document").objects.filter(pk=OuterRef("document"))
    label = Case(When(source="", then=F("title")), default=F("source"))
    apps.get_model("kb", "Judgment").objects.update(
        source=Coalesce(Subquery(document.annotate(label=label).values("label")), Value(""))
    )
    apps.get_model("kb", "SearchLog").objects.filter(result_count=0).update(outcome="nothing")
    profiles = apps.get_model("kb", "RetrievalProfile").objects
    newest = list(profiles.order_by("name", "-version").distinct("name").values_list("pk", flat=True))
    profiles.filter(pk__in=newest).update(published=True, published_at=F("created_at"))


class Migration(migrations.Migration):
    dependencies = [
        ("kb", "0006_profiles_and_evaluation"),
    ]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
