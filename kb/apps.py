from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class KnowledgeBaseConfig(AppConfig):
    name = "kb"
    verbose_name = _("Knowledge")

    def ready(self) -> None:
        """Connects the signal receivers and registers the system checks."""
        from kb import checks, signals  # noqa: F401, PLC0415
