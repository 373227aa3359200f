"""What is known of the providers of models: where they are, which roles they serve, and how each role is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kb.providers.recommended import Role

LOCAL: Final = "local"
GENERAL: Final = "openai"


@dataclass(frozen=True, slots=True)
class Served:
    """How a provider serves a role: chat and embeddings as OpenAI does, reranking in a form of `retrieval.rerankers.forms`.

    Attributes:
        models: names to suggest, the best first; the provider may have others.
        base_url: where it is another than the provider's.
        options: of a row, such as `form` and `batch_size`.
    """

    models: tuple[str, ...] = ()
    base_url: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider.

    Attributes:
        base_url: what comes before `/chat/completions`; of a server of one's own an example, on this machine.
        keys_url: where a key is made; blank: none is needed.
        listing: the path below the address that lists the models; blank: none does.
        is_key_optional: whether one is asked for by some of its servers only.
    """

    key: str
    name: str | Promise
    roles: Mapping[Role, Served]
    base_url: str = ""
    keys_url: str = ""
    listing: str = "/models"
    note: str | Promise = ""
    is_key_optional: bool = False

    @property
    def needs_key(self) -> bool:
        return bool(self.keys_url) and not self.is_key_optional

    def base_url_of(self, role: Role) -> str:
        return self.roles[role].base_url or self.base_url


def _rerank(*models: str, form: str = "jina", base_url: str = "") -> Served:
    return Served(models, base_url, {"form": form})


def _embedding(*models: str, batch_size: int = 32) -> Served:
    """`batch_size` is how many texts a request may hold."""
    return Served(models, options={"batch_size": batch_size})


_OWN_SERVER = _("Runs on a server of yours. Its address may be private: confirm that below.")

# fmt: off
PRESETS: Final = (
    Preset("deepseek", "DeepSeek", {
        Role.CHAT: Served(("deepseek-chat", "deepseek-reasoner")),
    }, "https://api.deepseek.com/v1", "https://platform.deepseek.com/api_keys"),
    Preset("dashscope", _("Qwen (DashScope)"), {
        Role.CHAT: Served(("qwen-plus", "qwen-max", "qwen-turbo")),
        Role.EMBEDDING: _embedding("text-embedding-v4", "text-embedding-v3", batch_size=10),
        Role.RERANK: _rerank("gte-rerank-v2", form="dashscope", base_url="https://dashscope.aliyuncs.com/api/v1"),
    }, "https://dashscope.aliyuncs.com/compatible-mode/v1", "https://bailian.console.aliyun.com/?tab=model#/api-key"),
    Preset("siliconflow", _("SiliconFlow"), {
        Role.CHAT: Served(("deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B")),
        Role.EMBEDDING: _embedding("BAAI/bge-m3", "Qwen/Qwen3-Embedding-8B"),
        Role.RERANK: _rerank("BAAI/bge-reranker-v2-m3", "Qwen/Qwen3-Reranker-8B"),
    }, "https://api.siliconflow.cn/v1", "https://cloud.siliconflow.cn/account/ak"),
    Preset("zhipu", _("Zhipu"), {
        Role.CHAT: Served(("glm-4.6", "glm-4.5-air", "glm-4-flash")),
        Role.EMBEDDING: _embedding("embedding-3", "embedding-2"),
        Role.RERANK: _rerank("rerank"),
    }, "https://open.bigmodel.cn/api/paas/v4", "https://bigmodel.cn/usercenter/proj-mgmt/apikeys", listing=""),
    Preset("moonshot", "Moonshot (Kimi)", {
        Role.CHAT: Served(("kimi-k2-0905-preview", "moonshot-v1-32k")),
    }, "https://api.moonshot.cn/v1", "https://platform.moonshot.cn/console/api-keys"),
    Preset("jina", "Jina", {
        Role.EMBEDDING: _embedding("jina-embeddings-v3"),
        Role.RERANK: _rerank("jina-reranker-v2-base-multilingual"),
    }, "https://api.jina.ai/v1", "https://jina.ai/api-dashboard/", listing=""),
    Preset("cohere", "Cohere", {
        Role.CHAT: Served(("command-a-03-2025", "command-r7b-12-2024")),
        Role.EMBEDDING: _embedding("embed-v4.0", "embed-multilingual-v3.0"),
        Role.RERANK: _rerank("rerank-v3.5", "rerank-multilingual-v3.0", form="cohere",
                             base_url="https://api.cohere.com/v2"),
    }, "https://api.cohere.ai/compatibility/v1", "https://dashboard.cohere.com/api-keys", listing=""),
    Preset("ollama", "Ollama", {
        Role.CHAT: Served(("qwen3:8b", "llama3.1:8b")),
        Role.EMBEDDING: _embedding("bge-m3", "nomic-embed-text"),
    }, "http://127.0.0.1:11434/v1", note=_OWN_SERVER),
    Preset("vllm", "vLLM", {
        Role.CHAT: Served(),
        Role.EMBEDDING: _embedding("BAAI/bge-m3"),
        Role.RERANK: _rerank("BAAI/bge-reranker-v2-m3"),
    }, "http://127.0.0.1:8000/v1", note=_OWN_SERVER),
    Preset("xinference", "Xinference", {
        Role.CHAT: Served(),
        Role.EMBEDDING: _embedding("bge-m3"),
        Role.RERANK: _rerank("bge-reranker-v2-m3"),
    }, "http://127.0.0.1:9997/v1", note=_OWN_SERVER),
    Preset("tei", "Text Embeddings Inference", {
        Role.EMBEDDING: _embedding(),
        Role.RERANK: _rerank(form="tei", base_url="http://127.0.0.1:8080"),
    }, "http://127.0.0.1:8080/v1", listing="/info", note=_OWN_SERVER),
    Preset(GENERAL, _("OpenAI or compatible"), {
        Role.CHAT: Served(("gpt-4.1-mini", "gpt-4.1")),
        Role.EMBEDDING: _embedding("text-embedding-3-small", "text-embedding-3-large"),
        Role.RERANK: _rerank(),
    }, "https://api.openai.com/v1", "https://platform.openai.com/api-keys",
        note=_("Any server with OpenAI’s paths; a key only where it asks for one."), is_key_optional=True),
    Preset(LOCAL, _("On this server"), {
        Role.EMBEDDING: Served(),
        Role.RERANK: Served(),
    }, listing="", note=_("Weights that are downloaded once and run here, without a key.")),
)
# fmt: on

BY_KEY: Final[Mapping[str, Preset]] = {each.key: each for each in PRESETS}


def preset_of(key: str) -> Preset:
    """The preset of a key; the general one for a key that is none, such as that of a later version."""
    return BY_KEY.get(key, BY_KEY[GENERAL])
