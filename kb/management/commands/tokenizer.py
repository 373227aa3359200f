from argparse import BooleanOptionalAction
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.base.shapes import as_values
from kb.content.models import Chunk
from kb.index.services.tokenizing import (
    SETTINGS,
    TOKENIZING,
    TokenizerState,
    Tokens,
    read_settings,
    tokenizer_change,
    tokenizer_settings,
    tokenizer_state,
    tokens_of,
)
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParseError
from kb.management.base import JSON, KnowledgeBaseCommand, argument, kb_arguments
from kb.providers.models import TokenizerSettings


class Command(KnowledgeBaseCommand):
    help = "Shows or changes what cuts a knowledge base's texts and queries into terms; searches go on meanwhile."

    arguments = (
        *kb_arguments(),
        argument("--engine", choices=TokenizerSettings.Engine.values, help="what cuts Chinese"),
        argument(
            "--dictionary",
            type=Path,
            metavar="FILE",
            help="own words, one a line: WORD [FREQUENCY] [PART OF SPEECH]; an empty file: none",
        ),
        argument("--stop-words", type=Path, metavar="FILE", help="words to leave out, one a line; an empty file: none"),
        argument("--simplify", action=BooleanOptionalAction, help="traditional to simplified Chinese"),
        argument("--no-wait", action="store_true", help="leave the tokenising to a worker"),
        argument("--text", metavar="TEXT", help="also show the tokens of this text or query"),
        JSON,
    )

    def handle(self, *_: Any, **options: Any) -> None:
        kb = self.knowledge_base(options)
        changes = {name: options[name] for name in SETTINGS if options[name] is not None}
        if changes and self._change(kb, changes) and not options["no_wait"]:
            with self.progress_bar(total=Chunk.objects.filter(knowledge_base=kb).count(), unit="chunks") as bar:
                TOKENIZING.follow(kb, on_progress=bar.update)
        kb.refresh_from_db()
        tokens = None if options["text"] is None else tokens_of(kb, options["text"])
        state = tokenizer_state(kb)
        self.answer(options, as_values(state) | as_values(tokens or {}), _text(kb, state, tokens))

    def _change(self, kb: KnowledgeBase, changes: dict[str, Any]) -> bool:
        """Sets the target; whether there is anything to tokenise."""
        present = tokenizer_settings(kb)
        wanted: dict[str, Any] = {name: getattr(present, name) for name in SETTINGS} | changes
        for name in ("dictionary", "stop_words"):
            if isinstance(wanted[name], Path):
                wanted[name] = _text_of(wanted[name])
        return tokenizer_change(kb, read_settings(**wanted))


def _text(kb: KnowledgeBase, state: TokenizerState, tokens: Tokens | None) -> Iterator[str]:
    yield f"{kb.name}: {state.id or 'no tokenizer'}"
    yield f"  engine      {state.engine}"
    yield f"  dictionary  {_words(state.dictionary)}"
    yield f"  stop words  {_words(state.stop_words)}"
    yield f"  simplified  {'yes' if state.simplify else 'no'}"
    if progress := state.progress:
        yield (
            f"  on its way  to {state.target_id}: {progress.done:,} of {progress.total:,} chunks; "
            "a worker goes on, and searches use the present one until then"
        )
    for token in tokens.tokens if tokens else ():
        origin = "" if token.surface == token.term else f"  of {token.surface}"
        dropped = "  dropped: a stop word" if token.is_dropped else ""
        yield f"  {token.kind:<12}{token.term}{origin}{dropped}"


def _text_of(path: Path) -> str:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}): name a text file.") from error
    except ParseError as error:
        raise CommandError(f"{path} is in no known encoding: save it as UTF-8.") from error


def _words(text: str) -> str:
    words = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    return f"{len(words):,} words: {', '.join(words[:5])}{', …' if len(words) > 5 else ''}" if words else "none"
