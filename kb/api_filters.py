"""What each list can be narrowed and sorted by; every order is one that an index serves, or a set bounded by its parent."""

from typing import Any, ClassVar

import django_filters
from django.db.models import Q, QuerySet

from kb.access.models.accounts import ApiKey
from kb.access.models.audit import AuditEntry
from kb.access.models.knowledge import Document, KnowledgeBase, Membership
from kb.base.text import normalized_key
from kb.graph.models import Entity, EntityName, Origin
from kb.graph.services.neighbourhood import facts_of
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.services.observe import LOST_AT
from kb.sources.external.providers.kinds import KINDS
from kb.sources.models import WebPage, WebSource
from kb.web.api.filtering import Flag, ListFilters, Moment, OneOf, Related, Text, Whole

ORIGINS = Origin.values


def knowledge_bases_of(principal: Any) -> QuerySet[Any]:
    return KnowledgeBase.objects.visible_to(principal)


def eval_sets_of(principal: Any) -> QuerySet[Any]:
    return EvalSet.objects.visible_to(principal)


def entities_of(principal: Any) -> QuerySet[Any]:
    return Entity.objects.visible_to(principal)


def facts_naming(rows: QuerySet[Any], entity: Entity) -> QuerySet[Any]:
    return rows.filter(pk__in=facts_of(entity).order_by().values("pk"))


class Created(django_filters.FilterSet):  # type: ignore[misc]
    created_after = Moment(field_name="created_at", lookup_expr="gte", help_text="Created then or later.")
    created_before = Moment(field_name="created_at", lookup_expr="lt", help_text="Created before that.")


class KnowledgeBaseFilters(Created, ListFilters):
    orders: ClassVar = ("name", "-name", "created_at", "-created_at", "id", "-id")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    language = OneOf(KnowledgeBase.Language.values, help_text="Of its documents.")
    role = OneOf(Membership.Role.values, help_text="The caller’s.")
    embedding_model = Text(help_text="The id of the model.")


class InvitationFilters(ListFilters):
    orders: ClassVar = ("-created_at", "created_at", "id", "-id")


class DocumentFilters(Created, ListFilters):
    orders: ClassVar = ("-created_at", "created_at", "-updated_at", "updated_at", "source", "-source", "id", "-id")
    q = Text(method="with_words", help_text="Stands in the title or the source.")
    status = OneOf(Document.Status.values)
    source = Text(help_text="The name of its file, or its address, whole.")
    source_type = OneOf(Document.SourceType.values)
    tag = Text(field_name="tags", method="with_tag", help_text="One of its tags.")
    batch_id = Whole(field_name="batch", help_text="The upload that it came with.")
    sha256 = Text(help_text="Of its bytes, in hexadecimal digits: whether they are here already.")
    updated_after = Moment(field_name="updated_at", lookup_expr="gte", help_text="Changed then or later.")

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(title__icontains=value) | Q(source__icontains=value))

    def with_tag(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(tags__contains=[value])


class ChunkFilters(ListFilters):
    orders: ClassVar = ("position", "-position")
    q = Text(field_name="text", lookup_expr="icontains", help_text="Stands in the text.")
    enabled = Flag(help_text="Whether searches find it.")
    is_edited = Flag(method="edited", help_text="Whether its text is not as it was cut from the document.")
    page = Whole(help_text="Of the document that it is on.")

    def edited(self, rows: QuerySet[Any], _name: str, value: bool) -> QuerySet[Any]:  # noqa: FBT001 - the library's
        return rows.exclude(cut_text="") if value else rows.filter(cut_text="")


class BatchFilters(Created, ListFilters):
    orders: ClassVar = ("-id", "id")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    paused = Flag()


class WebSourceFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "created_at", "-created_at", "id", "-id")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Only its sources.")
    q = Text(method="with_words", help_text="Stands in the name or the address.")
    kind = OneOf(WebSource.Kind.values)
    status = OneOf(WebSource.Status.values, help_text="Of the last run.")
    enabled = Flag()

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(name__icontains=value) | Q(url__icontains=value))


class WebPageFilters(ListFilters):
    orders: ClassVar = ("url", "-url", "id", "-id")
    q = Text(field_name="url", lookup_expr="icontains", help_text="Stands in the address.")
    state = OneOf(WebPage.State.values, help_text="Only pages of this state.")


class ExternalSourceFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    kind = OneOf(KINDS)
    enabled = Flag()


class EntityFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    q = Text(method="named", help_text="Stands in one of the names.")
    kind = Text()
    origin = OneOf(ORIGINS)

    def named(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=EntityName.objects.filter(key__contains=normalized_key(value)).values("entity"))


class FactFilters(ListFilters):
    orders: ClassVar = ("subject", "-subject", "id", "-id")
    entity_id = Related(entities_of, facts_naming, help_text="Only facts that name it, by any of its names.")
    subject = Text()
    predicate = Text()
    object = Text()
    origin = OneOf(ORIGINS)


class ConceptFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    q = Text(method="named", help_text="Stands in the name or in another word for it.")
    parent_id = Whole(field_name="parent", help_text="The concept that is wider.")

    def named(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=rows.filter(terms__key__contains=normalized_key(value)).order_by().values("pk"))


class EvalSetFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Only its sets.")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")


class EvalQueryFilters(ListFilters):
    orders: ClassVar = ("id", "-id", "external_id", "-external_id")
    q = Text(method="with_words", help_text="Stands in the text or the id.")
    answerable = Flag(help_text="false: the knowledge base has no answer to it.")

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(text__icontains=value) | Q(external_id__icontains=value))


class JudgmentFilters(ListFilters):
    orders: ClassVar = ("id", "-id", "query_id", "-query_id")
    query_id = Whole(field_name="query")
    document_id = Whole(field_name="document")
    grade = OneOf(["0", "1", "2", "3"])


class EvalRunFilters(Created, ListFilters):
    orders: ClassVar = ("-created_at", "created_at", "id", "-id")
    eval_set_id = Related(eval_sets_of, field_name="eval_set", help_text="Only the runs of this set.")
    knowledge_base_id = Related(knowledge_bases_of, field_name="eval_set__knowledge_base", help_text="Of its sets.")
    status = OneOf(EvalRun.Status.values)


class EvalRunQueryFilters(ListFilters):
    orders: ClassVar = ("id", "-id", "latency_ms", "-latency_ms")
    lost_at = OneOf(LOST_AT, help_text="Only queries of which this stage has lost the last of what is relevant.")
    answerable = Flag()


class ConversationFilters(Created, ListFilters):
    orders: ClassVar = ("-updated_at", "updated_at", "-created_at", "created_at")
    q = Text(field_name="title", lookup_expr="icontains", help_text="Stands in the title.")
    knowledge_base_id = Whole(method="about", help_text="Over this knowledge base, among others.")

    def about(self, rows: QuerySet[Any], _name: str, value: int) -> QuerySet[Any]:
        return rows.filter(knowledge_base_ids__contains=[value])


class ApiKeyFilters(ListFilters):
    orders: ClassVar = ("-created", "created", "name", "-name")
    key: ClassVar = "prefix"  # its id holds the hash of the secret
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    scope = OneOf(ApiKey.Scope.values)
    revoked = Flag()


class AuditFilters(ListFilters):
    orders: ClassVar = ("-id", "id")
    knowledge_base_id = Whole(help_text="Which may be gone.")
    username = Text()
    how = OneOf(AuditEntry.How.values)
    action = OneOf(AuditEntry.Action.values)
    object_type = Text()
    object_id = Text()
    since = Moment(field_name="at", lookup_expr="gte", help_text="Entries from then on.")
    until = Moment(field_name="at", lookup_expr="lt", help_text="Entries before that.")


class ProfileFilters(ListFilters):
    orders: ClassVar = ("name", "-name")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Its own profiles only.")


class ProfileVersionFilters(ListFilters):
    orders: ClassVar = ("-version", "version")
    published = Flag()
