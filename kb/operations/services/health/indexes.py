"""Whether the indexes of knowledge bases are there, of the present, and small enough."""

import math

from django.conf import settings
from django.db.models import Count, Exists, F, Func, IntegerField, OuterRef, Q, Sum

from kb.access.models import KnowledgeBase
from kb.base.findings import Finding, check, degraded, listed, ok
from kb.base.messages import joined
from kb.content.models import Chunk
from kb.index.fulltext import without_lexemes
from kb.index.models import ChunkPostings, VectorIndex
from kb.index.vector_index import builds_under_way, is_reading, most_bytes, reads_indexes, spaces_without_index
from kb.providers.embedding_models import tokenizer
from retrieval.errors import Message as _

MEGABYTE = 1024**2
# Of an index in memory: an ordinal and a 16-bit impact a posting, an id and a length a chunk. Its lexicon comes on top:
# measured 12 % for 16,000 chunks of statutes, and less the larger it is.
BYTES_A_POSTING = 6
BYTES_A_CHUNK = 12
SPARE = 1.25
REINDEX = _("run `manage.py reindex --kb NAME --bm25` for each")


@check("keyword postings")
def postings() -> Finding:
    """Knowledge bases whose chunks another tokenizer cut, or none did."""
    used = KnowledgeBase.objects.exclude(tokenizer_id="").values_list("tokenizer_id", flat=True).distinct()
    cutters = {tokenizer_id: tokenizer(tokenizer_id) for tokenizer_id in ("", *used)}
    if None in cutters.values():
        return degraded(_("not looked at: packages of keyword search are missing"))
    current = {cutter.id for tokenizer_id, cutter in cutters.items() if cutter and cutter.id == tokenizer_id}
    cut = ChunkPostings.objects.filter(chunk=OuterRef("pk"), tokenizer_id=OuterRef("knowledge_base__tokenizer_id"))
    uncut = Chunk.objects.filter(~Exists(cut)).values("knowledge_base_id")
    outdated = KnowledgeBase.objects.filter(Q(pk__in=uncut) | ~Q(tokenizer_id__in=("", *current))).distinct()
    if names := list(outdated.order_by("name").values_list("name", flat=True)):
        return degraded(_("outdated or incomplete in {names}", names=listed(names)), REINDEX)
    return ok(_("all of {names}", names=listed(sorted(current))) if current else _("none yet"))


@check("full text")
def lexemes() -> Finding:
    """Knowledge bases with chunks that were tokenised before full-text search had anything to read."""
    active = ChunkPostings.objects.filter(tokenizer_id=F("knowledge_base__tokenizer_id"))
    lacking = KnowledgeBase.objects.filter(pk__in=without_lexemes(active).values("knowledge_base_id"))
    if names := list(lacking.order_by("name").values_list("name", flat=True)):
        return degraded(_("chunks of {names} cannot be found by it", names=listed(names)), REINDEX)
    return ok(_("searches where the keyword index cannot answer"))


@check("keyword index memory")
def keyword_memory() -> Finding:
    """Knowledge bases whose keyword index no process can hold, so that every search loads it again."""
    limit = settings.BM25_MEMORY_BYTES
    frequencies = Func(F("frequencies"), function="octet_length", output_field=IntegerField())  # four bytes a posting
    rows = (
        ChunkPostings.objects.filter(tokenizer_id=F("knowledge_base__tokenizer_id"), chunk__enabled=True)
        .values("knowledge_base__name")
        .annotate(chunks=Count("pk"), postings=Sum(frequencies) / 4)
        .annotate(least=F("postings") * BYTES_A_POSTING + F("chunks") * BYTES_A_CHUNK)
    )
    too_large = list(rows.filter(least__gt=limit).order_by("-least").values_list("knowledge_base__name", "least"))
    if not too_large:
        return ok(_("every index is within BM25_MEMORY_MB ({megabytes})", megabytes=limit // MEGABYTE))
    wanted = math.ceil(SPARE * too_large[0][1] / MEGABYTE)
    return degraded(
        _(
            "over BM25_MEMORY_MB ({megabytes}) in {names}: each search loads it",
            megabytes=limit // MEGABYTE,
            names=listed(kb for kb, _bytes in too_large),
        ),
        _("set BM25_MEMORY_MB={megabytes} or more, or divide the knowledge base", megabytes=wanted),
    )


@check("vector indexes")
def vector_indexes() -> Finding:
    """Knowledge bases with so many vectors that an index is due, and without a finished one."""
    lacking = spaces_without_index()
    if not lacking:
        return ok(_("wherever there are more than {count:,} vectors", count=settings.VECTOR_INDEX_MIN_ROWS))
    under_way = builds_under_way()
    names = dict(KnowledgeBase.objects.values_list("pk", "name"))
    built, due = [], set()
    for space in lacking:
        kb = names.get(space.kb_id, "")
        if space.index_name in under_way:
            built.append(f"{kb!r} ({under_way[space.index_name]:,} of {space.vectors:,} vectors)")
        else:
            due.add(kb)
    parts = [_("being built for {names}", names=", ".join(built))] * bool(built)
    parts += [_("due for {names}", names=listed(sorted(due)))] * bool(due)
    detail = _("{parts}: each search compares all vectors until then", parts=joined(parts))
    start = _(
        "start a worker, which builds them within minutes: `manage.py serve`; its log says why one could not be built"
    )
    remedies = [start] * bool(due)
    if short := [space for space in lacking if space.build_remedy]:
        most = max(short, key=lambda space: space.build_bytes)
        remedies.append(
            _(
                "set {settings} for a build many times quicker, where the server has that much",
                settings=most.build_remedy,
            )
        )
    return degraded(detail, joined(remedies) if remedies else "")


@check("page cache")
def page_cache() -> Finding:
    """Whether vectors and their indexes are being read into memory since a start."""
    if is_reading():
        detail = _("vectors and indexes are being read into memory; searches of what is not there yet take longer")
        return degraded(detail, _("nothing to do: it ends by itself"))
    most = most_bytes()
    if not most:
        return ok(_("nothing is read into memory after a start (WARM_UP_MB=0)"))
    detail = _(
        "up to {gigabytes:.1f} GB of vectors and indexes are read into memory after a start",
        gigabytes=most / 1024**3,
    )
    if reads_indexes():
        return ok(detail)
    remedy = _("have an administrator of PostgreSQL run `CREATE EXTENSION pg_prewarm` in this database")
    return degraded(_("{detail}, but no indexes, which this server does not let be read", detail=detail), remedy)


@check("vector recall")
def vector_recall() -> Finding:
    """Knowledge bases whose vector index finds too few of the nearest, even at the greatest effort."""
    target = settings.VECTOR_RECALL_TARGET
    if low := VectorIndex.objects.filter(recall__lt=target).select_related("knowledge_base").order_by("recall"):
        of = [
            f"{row.knowledge_base.name} ({row.recall:.2f}{'' if row.is_used else ', compared one by one'})"
            for row in low
        ]
        detail = _("below VECTOR_RECALL_TARGET ({target}) in {names}", target=target, names=listed(of))
        if not any(row.is_used for row in low):
            return ok(detail)
        remedy = _(
            "choose an embedding model that tells the texts apart better, divide the knowledge base, or lower the target"
        )
        return degraded(detail, remedy)
    worst = VectorIndex.objects.order_by("recall").values_list("recall", flat=True).first()
    if worst is None:
        return ok(_("nothing measured: no vectors have an index"))
    return ok(_("every index finds at least {share:.3f} of the nearest 25", share=worst))
