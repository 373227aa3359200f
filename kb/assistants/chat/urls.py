from django.urls import path

from kb.assistants.chat.answers import AnswerView, AskView, FeedbackView, StopView
from kb.assistants.chat.conversations import ConversationsView, ConversationView, VisitorView
from kb.assistants.chat.enter import EnterView
from kb.assistants.chat.pages import ChatPageView, EmbedScriptView, FrameView, LogoView, PictureView
from kb.assistants.chat.passages import PassageImageView, PassagePageView, PassageTextView, PassageView

app_name = "chat"
_PASSAGE = "<slug:slug>/passages/<int:message_id>/<slug:place>/"
urlpatterns = [
    path("site.logo", LogoView.as_view(), name="logo"),  # a dot stands in no assistant's address
    path("<slug:slug>/", ChatPageView.as_view(), name="page"),
    path("<slug:slug>/frame/", FrameView.as_view(), name="frame"),
    path("<slug:slug>/embed.js", EmbedScriptView.as_view(), name="embed"),
    path("<slug:slug>/picture/", PictureView.as_view(), name="picture"),
    path("<slug:slug>/enter/", EnterView.as_view(), name="enter"),
    path("<slug:slug>/ask/", AskView.as_view(), name="ask"),
    path("<slug:slug>/answers/<int:message_id>/", AnswerView.as_view(), name="answer"),
    path("<slug:slug>/answers/<int:message_id>/stop/", StopView.as_view(), name="stop"),
    path("<slug:slug>/answers/<int:message_id>/feedback/", FeedbackView.as_view(), name="feedback"),
    path("<slug:slug>/conversations/", ConversationsView.as_view(), name="conversations"),
    path("<slug:slug>/conversations/<uuid:conversation_id>/", ConversationView.as_view(), name="conversation"),
    path("<slug:slug>/visitor/", VisitorView.as_view(), name="visitor"),
    path(_PASSAGE, PassageView.as_view(), name="passage"),
    path(f"{_PASSAGE}text/", PassageTextView.as_view(), name="passage_text"),
    path(f"{_PASSAGE}pages/<int:number>/", PassagePageView.as_view(), name="passage_page"),
    path(f"{_PASSAGE}pages/<int:number>/image/", PassageImageView.as_view(), name="passage_image"),
]
