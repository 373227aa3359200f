"""What a reader sees where the admin has no such page, also while DEBUG is on, as it is on a machine of one's own."""

from collections.abc import Callable
from http import HTTPStatus

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _


class NotFoundInAdmin:
    """Middleware that gives the admin's readers a page instead of Django's, which is made for developers."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, Http404) or not request.path.startswith(reverse("admin:index")):
            return None
        context = {**admin.site.each_context(request), "title": _("This page does not exist")}
        return render(request, "admin/not_found.html", context, status=HTTPStatus.NOT_FOUND)
