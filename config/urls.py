from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from kb.agents.dify import DifyRetrievalView
from kb.answers.admin import ask_urls
from kb.content.admin import invitations_urls
from kb.index.admin.keyword_cache import keyword_cache_urls
from kb.operations.api.health import MetricsView
from kb.quality.compare.admin.page import compare_urls
from kb.quality.debug.admin.debug import search_debug_urls
from kb.quality.debug.admin.judge import judge_urls
from kb.quality.profiles.admin.pages import profile_urls
from kb.quality.why_not.admin.page import why_not_urls
from kb.web.admin.login import login

admin_urls = [
    *ask_urls(admin.site),
    *search_debug_urls(admin.site),
    *why_not_urls(admin.site),
    *compare_urls(admin.site),
    *judge_urls(admin.site),
    *keyword_cache_urls(admin.site),
    *profile_urls(admin.site),
    *invitations_urls(admin.site),
    path("login/", login, name="login"),
    *admin.site.get_urls(),
]
urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", (admin_urls, "admin", admin.site.name)),
    path("api/v1/", include("kb.api")),
    re_path("^api/dify/retrieval/?$", DifyRetrievalView.as_view(), name="dify_retrieval"),
    re_path("^metrics/?$", MetricsView.as_view()),
]
handler400 = "kb.web.api.errors.bad_request"
handler500 = "kb.web.api.errors.server_error"
