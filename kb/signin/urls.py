"""Below the admin's address, and before its pages, whose login these lead around."""

from django.urls import path

from kb.signin import views

urlpatterns = [
    path("oidc/login/", views.begin, name="signin_begin"),
    path("oidc/callback/", views.callback, name="signin_callback"),
    path("login/link/", views.link, name="signin_link"),
]
