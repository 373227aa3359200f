"""The local models that are recommended: docs, commands, forms and the first start read them from here.

Each runs with the loaders of `retrieval` as it is: pooling and prompts are the model's own or those of
`retrieval.embedders.sentence_transformer`, rerankers have one label, and none needs code from its repository.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class Role(StrEnum):
    EMBEDDING = "embedding"
    RERANK = "rerank"
    CHAT = "chat"


class Size(StrEnum):
    SMALL = "small"
    BASE = "base"
    LARGE = "large"


MANY: Final = "many"  # beside the codes of KnowledgeBase.Language: about a hundred languages, those among them


@dataclass(frozen=True, slots=True)
class Figure:
    """A published result, in points from 0 to 100 unless `metric` says otherwise."""

    benchmark: str
    metric: str
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class RecommendedModel:
    """`dimension` is None for rerankers; `parameters` are millions; `download_mb` counts the files that are read."""

    model_id: str
    role: Role
    languages: tuple[str, ...]
    size: Size
    dimension: int | None
    parameters: float
    download_mb: int
    licence: str
    figures: tuple[Figure, ...] = ()
    run_here: bool = False  # whether its real weights, not only small ones made in tests, were run with this code
    note: str | Promise = ""


_BGE = "https://github.com/FlagOpen/FlagEmbedding/blob/master/research/baai_general_embedding/README.md"
_BGE_M3 = "https://arxiv.org/abs/2402.03216"
_BGE_RERANKER = "https://github.com/FlagOpen/FlagEmbedding/blob/master/research/reranker/README.md"
_ETTIN = "https://huggingface.co/blog/ettin-reranker"


def _chinese(value: float) -> Figure:
    return Figure("C-MTEB retrieval", "NDCG@10", value, _BGE)


def _english(value: float) -> Figure:
    return Figure("MTEB retrieval, 15 sets", "NDCG@10", value, _BGE)


def _english_v2(value: float) -> Figure:
    return Figure("MTEB(eng, v2) retrieval", "NDCG@10", value, _ETTIN)


def _reranked(value: float) -> Figure:
    return Figure("MTEB(eng, v2) retrieval, the first 100 of six models reranked", "NDCG@10", value, _ETTIN)


def _chinese_pairs(value: float) -> Figure:
    return Figure("C-MTEB reranking, with Chinese-English sets", "MAP", value, _BGE_RERANKER)


def _speed(value: float) -> Figure:
    return Figure("CPU Intel Core i7-13700K", "pairs/s", value, _ETTIN)


_PROMPT = _("It puts an instruction before each query, by itself.")
_PROMPTS = _("It puts “query: ” and “passage: ” before the texts, by itself.")
_LOGITS = _("Its scores are not probabilities: 0.6 passes nearly everything. Calibrate the threshold.")

# The best of a language and size first.
# fmt: off
MODELS: Final = (
    RecommendedModel("BAAI/bge-small-zh-v1.5", Role.EMBEDDING, ("zh",), Size.SMALL, 512, 24.0, 96, "MIT",
                     (_chinese(61.77),), note=_PROMPT),
    RecommendedModel("BAAI/bge-base-zh-v1.5", Role.EMBEDDING, ("zh",), Size.BASE, 768, 102.3, 410, "MIT",
                     (_chinese(69.49),), note=_PROMPT),
    RecommendedModel("BAAI/bge-large-zh-v1.5", Role.EMBEDDING, ("zh",), Size.LARGE, 1024, 325.5, 1303, "MIT",
                     (_chinese(70.46),), note=_PROMPT),
    RecommendedModel("BAAI/bge-small-en-v1.5", Role.EMBEDDING, ("en",), Size.SMALL, 384, 33.4, 134, "MIT",
                     (_english(51.68), _english_v2(51.49)), note=_PROMPT),
    RecommendedModel("sentence-transformers/all-MiniLM-L6-v2", Role.EMBEDDING, ("en",), Size.SMALL, 384, 22.7, 92,
                     "Apache-2.0", (_english_v2(42.92),), run_here=True,
                     note=_("It reads the first 256 tokens of a chunk.")),
    RecommendedModel("BAAI/bge-base-en-v1.5", Role.EMBEDDING, ("en",), Size.BASE, 768, 109.5, 439, "MIT",
                     (_english(53.25),), note=_PROMPT),
    RecommendedModel("BAAI/bge-large-en-v1.5", Role.EMBEDDING, ("en",), Size.LARGE, 1024, 335.1, 1342, "MIT",
                     (_english(54.29),), note=_PROMPT),
    RecommendedModel("intfloat/multilingual-e5-small", Role.EMBEDDING, (MANY,), Size.SMALL, 384, 117.7, 493, "MIT",
                     (_chinese(59.95),), note=_PROMPTS),
    RecommendedModel("intfloat/multilingual-e5-base", Role.EMBEDDING, (MANY,), Size.BASE, 768, 278.0, 1134, "MIT",
                     (_chinese(61.63),), note=_PROMPTS),
    RecommendedModel("BAAI/bge-m3", Role.EMBEDDING, (MANY,), Size.LARGE, 1024, 567.8, 2293, "MIT",
                     (Figure("MIRACL, 18 languages", "NDCG@10", 69.2, _BGE_M3),),
                     note=_("It reads up to 8,192 tokens; only its dense vectors are used.")),
    RecommendedModel("cross-encoder/ettin-reranker-32m-v1", Role.RERANK, ("en",), Size.SMALL, None, 32.0, 132,
                     "Apache-2.0", (_reranked(57.79), _speed(92.5)), note=_LOGITS),
    RecommendedModel("cross-encoder/ms-marco-MiniLM-L6-v2", Role.RERANK, ("en",), Size.SMALL, None, 22.7, 92,
                     "Apache-2.0", (_reranked(50.82), _speed(143.9))),
    RecommendedModel("cross-encoder/ettin-reranker-150m-v1", Role.RERANK, ("en",), Size.BASE, None, 149.6, 602,
                     "Apache-2.0", (_reranked(59.94), _speed(14.0)), note=_LOGITS),
    RecommendedModel("cross-encoder/ettin-reranker-400m-v1", Role.RERANK, ("en",), Size.LARGE, None, 395.8, 1587,
                     "Apache-2.0", (_reranked(60.91), _speed(5.2)), note=_LOGITS),
    RecommendedModel("BAAI/bge-reranker-base", Role.RERANK, ("zh", "en"), Size.BASE, None, 278.0, 1134, "MIT",
                     (_chinese_pairs(65.42), _reranked(48.90), _speed(19.2))),
    RecommendedModel("BAAI/bge-reranker-large", Role.RERANK, ("zh", "en"), Size.LARGE, None, 559.9, 2262, "MIT",
                     (_chinese_pairs(66.10), _reranked(50.98), _speed(6.2))),
    RecommendedModel("cross-encoder/mmarco-mMiniLMv2-L12-H384-v1", Role.RERANK, ("zh", MANY), Size.SMALL, None, 117.6,
                     493, "Apache-2.0", note=_("It learnt from MS MARCO translated into 14 languages.")),
    RecommendedModel("BAAI/bge-reranker-v2-m3", Role.RERANK, (MANY,), Size.LARGE, None, 567.8, 2293, "Apache-2.0",
                     (_reranked(55.26), _speed(6.0))),
)
# fmt: on


def models_of(role: Role, language: str, size: Size | None = None) -> list[RecommendedModel]:
    """Those of a language (a knowledge base's, or MANY) and size, the best first; without a size, of all sizes."""
    return [each for each in MODELS if each.role == role and language in each.languages and size in (None, each.size)]
