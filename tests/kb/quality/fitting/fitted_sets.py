"""Evaluation sets whose best settings are known."""

import numpy as np

from kb.ingest.services.chunks import chunk_update
from kb.models import Chunk, ChunkEmbedding, EvalQuery, EvalSet, Judgment
from kb.providers.embedding_models import embedder
from tests.factories import make_document

NAMES = [
    f"{first}{second}"
    for first in ("amber", "birch", "cedar", "dune", "ember", "fjord")
    for second in ("gate", "hill", "isle", "joint", "keel")
]


def make_judged_set(kb, *, names=NAMES, unanswerable=0):
    """A query for each document, which alone holds the name that it asks for."""
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    for name in names:
        document = make_document(kb, f"The warranty of {name} lasts two years.", source=f"{name}.md")
        query = EvalQuery.objects.create(
            eval_set=eval_set, external_id=name, text=f"How long is {name} under warranty?"
        )
        Judgment.objects.create(query=query, document=document, grade=1)
    for number in range(unanswerable):
        EvalQuery.objects.create(
            eval_set=eval_set, external_id=f"none{number}", text=f"share price {number}", answerable=False
        )
    return eval_set


def mislead(kb):
    """Gives each chunk the vector of the one before, so that vectors find what is not asked for."""
    rows = list(ChunkEmbedding.objects.filter(knowledge_base=kb, kind=ChunkEmbedding.Kind.CONTENT).order_by("pk"))
    vectors = [row.vector for row in rows]
    for row, vector in zip(rows, [vectors[-1], *vectors[:-1]], strict=True):
        ChunkEmbedding.objects.filter(pk=row.pk).update(vector=vector)


ENGLISH = [f"{name}{suffix}" for name in NAMES for suffix in ("", "s")]
CHINESE = [f"{first}{second}" for first in "山河湖海林泉" for second in "门桥塔城寺院路港"]


def make_mixed_set(kb, *, questions):
    """Documents of words that others have too, two chunks each, so that every channel has an order of its own.

    With questions a few queries equal that of a chunk which holds other words.
    """
    rng = np.random.default_rng(7)
    vocabulary = np.array(CHINESE if kb.language == "zh" else ENGLISH)
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="mixed")
    for number in range(24):
        texts = [" ".join(rng.choice(vocabulary, 12)) for _ in range(2)]
        document = make_document(kb, *texts, source=f"{number}.md")
        text = " ".join([*rng.choice(texts[0].split(), 2), *rng.choice(vocabulary, 2)])
        query = EvalQuery.objects.create(eval_set=eval_set, external_id=f"q{number}", text=text)
        Judgment.objects.create(query=query, document=document, grade=1)
    if questions:
        for chunk in Chunk.objects.filter(knowledge_base=kb, position=0).order_by("pk")[::2]:
            vector = embedder("hashing").embed_documents([" ".join(rng.choice(vocabulary, 3))])[0]
            ChunkEmbedding.objects.create(
                chunk=chunk, knowledge_base=kb, model="hashing", kind=ChunkEmbedding.Kind.QUESTION, vector=vector
            )
        others = Chunk.objects.filter(knowledge_base=kb, position=1).order_by("pk")[5:11]
        for chunk, query in zip(others, eval_set.queries.order_by("pk")[:6], strict=True):
            chunk_update(chunk, text=chunk.text, enabled=True, questions=[query.text])
    return eval_set
