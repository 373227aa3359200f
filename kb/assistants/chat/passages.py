"""A passage that an answer rests on, in its document: what the assistant shows of it, with its publisher's present rights."""

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from kb.assistants.chat.requests import ChatView, sent
from kb.assistants.chat.shapes import SentPage, SentPassage, SentText
from kb.assistants.services.visitors import NEAR, cited_chunk, own_answer
from kb.base.errors import NotVisible
from kb.content.models import Chunk
from kb.ingest.services.passages import (
    PassageUrls,
    page_context,
    page_label,
    page_numbers,
    passage_context,
    text_context,
)
from kb.ingest.services.previews import USUAL_WIDTH, page_response

_NO_URLS = PassageUrls(page="", text="text")


class OfPassage(ChatView):
    """`place` is the number of a source, or "n" and that of a near miss."""

    def chunk(self, message_id: int, place: str) -> Chunk:
        """Raises NotVisible where the visitor has no such source, and where the assistant opens no documents."""
        message, showing = own_answer(self.visit, message_id), self.showing
        is_hidden = place.startswith(NEAR) and (message.hit or not showing.settings.near_misses)
        if is_hidden or showing.settings.shows != "page":
            raise NotVisible(_("This chat does not open the documents of its answers."))
        return cited_chunk(showing.reader, message, place)

    def chunk_on(self, message_id: int, place: str, number: int) -> Chunk:
        """Raises NotVisible also for a page that the passage does not stand on."""
        chunk = self.chunk(message_id, place)
        if number not in page_numbers(chunk):
            raise NotVisible(_("The passage does not stand on this page."))
        return chunk


class PassageView(OfPassage):
    def get(self, request: HttpRequest, message_id: int, place: str) -> HttpResponse:  # noqa: ARG002
        chunk = self.chunk(message_id, place)
        context = passage_context(chunk, _NO_URLS)
        label = page_label(chunk.document)
        return sent(
            SentPassage(
                title=str(chunk.document),
                headings=context["headings"],
                before=context["before"],
                text=chunk.text,
                after=context["after"],
                pages=[(number, label.format(page=number)) for number in page_numbers(chunk)],
                has_original_text=bool(context["text_url"]),
            )
        )


class PassageTextView(OfPassage):
    def get(self, request: HttpRequest, message_id: int, place: str) -> HttpResponse:  # noqa: ARG002
        context = text_context(self.chunk(message_id, place), url="")
        return sent(
            SentText(
                html=str.__str__(
                    context.get("text", "")
                ),  # the plain text of what is marked as safe, which no encoder knows
                problem=context.get("problem", ""),
                is_awaited=context.get("is_awaited", False),
            )
        )


class PassagePageView(OfPassage):
    def get(self, request: HttpRequest, message_id: int, place: str, number: int) -> HttpResponse:  # noqa: ARG002
        context = page_context(self.chunk_on(message_id, place, number), number, url="", image_url="")
        problem, is_awaited = context.get("problem", ""), context.get("is_awaited", False)
        if problem or is_awaited:
            return sent(SentPage(label=context["label"], problem=problem, is_awaited=is_awaited))
        return sent(
            SentPage(
                label=context["label"],
                width=context["width"],
                height=context["height"],
                places=[(each.left, each.top, each.width, each.height) for each in context["places"]],
            )
        )


class PassageImageView(OfPassage):
    def get(self, request: HttpRequest, message_id: int, place: str, number: int) -> HttpResponse:  # noqa: ARG002
        chunk = self.chunk_on(message_id, place, number)
        return page_response(self.showing.reader, chunk.document_id, number, USUAL_WIDTH)
