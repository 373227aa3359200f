from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from kb.agents.dify import DifyRetrievalView
from kb.operations.api.health import MetricsView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", include("kb.signin.urls")),
    path("admin/", admin.site.urls),
    path("api/v1/", include("kb.api")),
    path("v1/", include("kb.agents.openai.urls")),
    path("chat/", include("kb.assistants.chat.urls")),
    re_path("^api/dify/retrieval/?$", DifyRetrievalView.as_view(), name="dify_retrieval"),
    re_path("^metrics/?$", MetricsView.as_view()),
]
handler400 = "kb.web.api.errors.bad_request"
handler500 = "kb.web.api.errors.server_error"
