from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig
from django.utils.translation import gettext_lazy as _

from kb.ingest.parser.confinement import hide_from_siblings


class ZhikuAdminConfig(AdminConfig):
    default_site = "kb.web.admin.site.ZhikuAdminSite"


class KnowledgeBaseConfig(AppConfig):
    name = "kb"
    verbose_name = _("Knowledge")

    def ready(self) -> None:
        """Connects receivers and system checks, makes the folder of temporary files, and hides secrets in memory."""
        from kb import checks, signals  # noqa: F401, PLC0415
        from kb.base.files import make_temporary_folder, remove_left  # noqa: PLC0415
        from kb.ingest.parser import office  # noqa: PLC0415

        make_temporary_folder()
        remove_left(office.folders())
        hide_from_siblings()
