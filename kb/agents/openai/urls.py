from django.urls import path
from drf_spectacular.views import SpectacularAPIView

from kb.agents.openai.views import ChatCompletionsView, ElsewhereView, ModelsView, ModelView

DESCRIPTION = {
    "TITLE": "Zhiku: OpenAI's protocol",
    "DESCRIPTION": "Each assistant is a model. Keys are those of the API.",
    "SERVERS": [{"url": "/v1"}],
    "SCHEMA_PATH_PREFIX": "",
    "PREPROCESSING_HOOKS": [],
}

endpoints = [
    path("models", ModelsView.as_view()),
    path("models/<slug:slug>", ModelView.as_view()),
    path("chat/completions", ChatCompletionsView.as_view()),
]
urlpatterns = [
    *endpoints,
    path(
        "openapi",
        SpectacularAPIView.as_view(
            patterns=endpoints, custom_settings=DESCRIPTION, authentication_classes=[], permission_classes=[]
        ),
    ),
    path("<path:path>", ElsewhereView.as_view()),
]
