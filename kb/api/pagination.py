from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import PageNumberPagination
from rest_framework.request import Request


class Pages(PageNumberPagination):
    page_size_query_param = "page_size"
    max_page_size = 200

    def get_page_number(self, request: Request, paginator: Any) -> int:  # noqa: ARG002 - the framework's interface
        return _positive(request, self.page_query_param) or 1

    def get_page_size(self, request: Request) -> int:
        asked = _positive(request, "page_size")
        if asked is None:
            return self.page_size or self.max_page_size
        if asked > self.max_page_size:
            message = _("Give a number from 1 to %(most)s.") % {"most": self.max_page_size}
            raise ValidationError({"page_size": [message]})
        return asked

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """The bounds too, which the framework's own description leaves out."""
        parameters: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            parameter["schema"] |= {"minimum": 1}
            if parameter["name"] == self.page_size_query_param:
                parameter["schema"] |= {"maximum": self.max_page_size, "default": self.page_size}
        return parameters


def _positive(request: Request, name: str) -> int | None:
    value = request.query_params.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise ValidationError({name: [_("Give a whole number from 1.")]})
    return int(value)
