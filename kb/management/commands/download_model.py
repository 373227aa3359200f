from typing import Any

from django.conf import settings

from kb.management.base import KnowledgeBaseCommand, argument, table
from kb.providers import recommended
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.embedders.registry import normalize_model_id
from retrieval.errors import ModelUnavailable
from retrieval.model_files import download, probe


class Command(KnowledgeBaseCommand):
    help = "Downloads an embedding model or a reranker from the Hugging Face hub, or from the mirror that HF_ENDPOINT names."

    arguments = (
        argument(
            "model",
            nargs="?",
            default=settings.EMBEDDING_MODEL,
            metavar="MODEL_ID",
            help="default: EMBEDDING_MODEL, here %(default)s",
        ),
        argument(
            "--list", action="store_true", help="list the recommended models by language and size, and download none"
        ),
        argument("--json", action="store_true", help="with --list: print JSON"),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["list"]:
            columns = ("role", "languages", "size", "model", "dimension", "MB", "licence")
            rows = [
                (
                    each.role,
                    ", ".join(each.languages),
                    each.size,
                    each.model_id,
                    str(each.dimension or ""),
                    str(each.download_mb),
                    each.licence,
                )
                for each in recommended.MODELS
            ]
            self.answer(options, recommended.MODELS, table([columns, *rows]))
            return
        try:
            model = normalize_model_id(options["model"])
        except ValueError as error:
            raise ModelUnavailable(str(error)) from error
        if model == HASHING_MODEL_ID or model.startswith(OPENAI_PREFIX):
            self.stdout.write(f"{model} has no files to download.")
            return
        endpoint = settings.HF_ENDPOINT or None
        found = probe(model, endpoint=endpoint, timeout_s=30)
        if found.found == "local":
            self.stdout.write(f"{model} is at hand already: {found.reason}.")
            return
        if found.found == "none":
            raise ModelUnavailable(f"{model}: {found.reason}")
        size = f"{found.size_bytes / 1e6:,.0f} MB" if found.size_bytes else "of unknown size"
        self.stderr.write(f"{model} ({size}) {found.reason}.")
        with self.progress_bar(total=found.size_bytes, unit="B", scale=True) as bar:
            path = download(model, endpoint=endpoint, progress=lambda done, _total: bar.update(done - bar.n))
        self.stdout.write(f"{model} is in {path}.")
