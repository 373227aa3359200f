"""What the tests of moving to another tokenizer share."""

from kb.index.services.tokenizing import read_settings
from kb.models import ChunkPostings, KnowledgeBase, Principal
from kb.search.services.search import SearchRequest, search


def settings(dictionary="", stop_words="", *, engine="jieba", simplify=False):
    return read_settings(engine=engine, dictionary=dictionary, stop_words=stop_words, simplify=simplify)


def fresh(kb):
    return KnowledgeBase.objects.get(pk=kb.pk)


def ask(kb, query):
    request = SearchRequest(query=query, knowledge_base_ids=[kb.pk], explain=True)
    return search(Principal(kb.owner), request).result


def found_by_keyword(kb, query):
    return [hit.passage.text for hit in ask(kb, query).hits if "bm25" in hit.ranks]


def keyword_span(kb, query="保修"):
    return next(span.detail for span in ask(kb, query).spans if span.stage == "bm25")


def tokenizers_of_postings(kb):
    return set(ChunkPostings.objects.filter(knowledge_base=kb).values_list("tokenizer_id", flat=True))
