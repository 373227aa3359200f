"""What a reader sees where the admin has no such page, or one that is not theirs, also while DEBUG is on."""

from collections.abc import Callable
from http import HTTPStatus

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _


class RefusedInAdmin:
    """Middleware that gives the admin's readers pages with a way back instead of Django's bare ones."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not request.path.startswith(reverse("admin:index")):
            return None
        if isinstance(exception, Http404):
            context = {**admin.site.each_context(request), "title": _("This page does not exist")}
            return render(request, "web/not_found.html", context, status=HTTPStatus.NOT_FOUND)
        if isinstance(exception, PermissionDenied):
            context = {**admin.site.each_context(request), "title": _("You may not open this page")}
            return render(request, "web/forbidden.html", context, status=HTTPStatus.FORBIDDEN)
        return None
