import os

from django.core.wsgi import get_wsgi_application

from config import embedded
from kb.base.telemetry import otel

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
embedded.ensure(role="web server")
otel.start("web")
application = get_wsgi_application()

from kb.checks import require_sound_settings  # noqa: E402 - after Django's setup

require_sound_settings()
