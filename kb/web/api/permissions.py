from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from kb.web.api.authentication import principal_of

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it imports this module, which the settings name


class PrincipalPermission(BasePermission):
    """Callers are known, and only those that can write may use a writing method.

    A view whose POST only reads says so with `post_reads = True`.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not request.user.is_authenticated:
            return False
        reads = request.method in SAFE_METHODS or (request.method == "POST" and getattr(view, "post_reads", False))
        return reads or principal_of(request).can_write
