from django.contrib import admin

from kb.admin.scoped import ScopedModelAdmin
from kb.models import WebSource


@admin.register(WebSource)
class WebSourceAdmin(ScopedModelAdmin):
    list_display = ("name",)
