from dataclasses import replace

import numpy as np
import pytest

from kb.index.keywords import Extraction, Source
from kb.index.services.writing import (
    Prepared,
    add_vectors,
    prepare,
    rebuild_vectors,
    rewrite_chunks,
    tokenize,
    write_chunks,
)
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document
from kb.providers.embedding_models import embedder, tokenizer
from retrieval.generation import OpenAIGenerator
from tests.factories import make_kb
from tests.servers import ModelServer, Reply

TEXT = "《民法典》规定租赁合同的租赁期限不得超过二十年。租赁期限超过二十年的，超过部分无效。"


def ready(*sources, language=None):
    extraction = Extraction(language) if language else None
    return prepare(sources, tokenizers=[tokenizer()], embedder=embedder("hashing"), extraction=extraction)


@pytest.mark.django_db
class TestPrepare:
    def test_lexemes_are_the_distinct_tokens_and_marked_ngrams(self):
        [by_tokenizer] = tokenize(["Warranty 保修期 保修期"], [tokenizer()])

        lexemes = by_tokenizer[tokenizer().id].lexemes

        assert set(tokenizer()("Warranty 保修期")) == {lexeme for lexeme in lexemes if not lexeme.startswith("~")}
        assert {"~war", "~nty", "~保修", "~修期"} <= set(lexemes)
        assert len(lexemes) == len(set(lexemes))

    def test_without_a_tokenizer_there_are_no_postings(self):
        assert tokenize(["保修期"], []) == [{}]

    def test_the_content_is_embedded_in_its_context(self):
        [prepared] = ready(Source("手册\n保修", "保修"))

        assert np.array_equal(prepared.vector, embedder("hashing").embed_documents(["手册\n保修"])[0])
        assert (prepared.keywords, prepared.keyword_vector, prepared.question_vectors) == ((), None, ())

    def test_keywords_are_those_of_the_chunk_and_embedded_together(self):
        [prepared] = ready(Source(f"别的标题\n{TEXT}", TEXT), language="zh")

        assert "民法典" in prepared.keywords
        assert not any("标题" in word for word in prepared.keywords)
        joined = embedder("hashing").embed_documents([" ".join(prepared.keywords)])[0]
        assert np.array_equal(prepared.keyword_vector, joined)

    def test_a_chunk_without_keywords_has_no_vector_of_them(self):
        nothing, something = ready(Source("123", "123"), Source(TEXT, TEXT), language="zh")

        assert (nothing.keywords, nothing.keyword_vector) == ((), None)
        assert something.keyword_vector is not None

    def test_keywords_too_long_to_be_stored_are_left_out(self):
        [prepared] = ready(Source("", "x" * 400), language="en")

        assert prepared.keywords == ()

    def test_each_question_has_a_vector(self):
        plain, asked = ready(Source("甲", "甲"), Source("乙", "乙", ("保修多久?", "谁来修?")))

        assert plain.question_vectors == ()
        expected = embedder("hashing").embed_documents(["保修多久?", "谁来修?"])
        assert np.array_equal(np.stack(asked.question_vectors), expected)

    def test_keywords_of_a_curator_are_embedded_and_none_are_looked_for(self):
        [prepared] = ready(Source(TEXT, TEXT, keywords=("租期",)), language="zh")
        [without] = ready(Source(TEXT, TEXT, keywords=("租期",)))

        assert prepared.keywords == without.keywords == ("租期",)
        assert np.array_equal(prepared.keyword_vector, embedder("hashing").embed_documents(["租期"])[0])

    def test_progress_goes_from_none_to_all(self):
        shares = []
        prepare([Source("甲", "甲", ("乙",))], tokenizers=[], embedder=embedder("hashing"), on_embedded=shares.append)

        assert shares == [0.0, 1.0]

    def test_nothing_becomes_nothing(self):
        assert ready() == []


@pytest.mark.django_db
class TestTermsOfALanguageModel:
    @pytest.fixture
    def server(self):
        with ModelServer() as server:
            yield server

    @pytest.fixture
    def read(self, server):
        model = OpenAIGenerator(server.base_url, "", "terms", sleep=lambda _: None)
        model.load()

        def read(*sources, **options):
            extraction = Extraction("zh", reader=model, **options)
            return prepare(sources, tokenizers=[], embedder=embedder("hashing"), extraction=extraction)

        return read

    def test_keywords_and_questions_come_from_one_answer_and_are_embedded(self, server, read):
        server.always("chat", Reply('{"keywords": ["租期"], "questions": ["最长多久?"]}'))

        [prepared] = read(Source(TEXT, TEXT), by_model=True, questions=True)

        assert (prepared.keywords, prepared.questions, prepared.problem) == (("租期",), ("最长多久?",), "")
        assert prepared.keyword_vector is not None
        assert len(prepared.question_vectors) == 1
        assert server.calls["chat"] == 1

    def test_what_the_model_does_not_give_is_extracted_and_the_reason_is_kept(self, server, read):
        server.always("chat", Reply(status=503))

        [prepared] = read(Source(TEXT, TEXT), by_model=True, questions=True)

        assert "民法典" in prepared.keywords
        assert prepared.questions == ()
        assert "LLM_BASE_URL" in prepared.problem

    def test_without_a_language_model_the_reason_says_what_to_set(self):
        extraction = Extraction("zh", by_model=True)

        [prepared] = prepare([Source(TEXT, TEXT)], tokenizers=[], embedder=embedder("hashing"), extraction=extraction)

        assert "民法典" in prepared.keywords
        assert "add a chat model under System, Models" in prepared.problem

    @pytest.mark.parametrize("source", [Source(TEXT, TEXT, ("谁?",)), Source(TEXT, TEXT, own_questions=True)])
    def test_a_chunk_that_has_its_questions_is_not_asked_for_others(self, server, read, source):
        [prepared] = read(source, keywords=False, questions=True)

        assert prepared.questions == source.questions
        assert server.calls["chat"] == 0

    def test_progress_is_told_of_every_chunk_that_is_read(self, server):
        server.always("chat", Reply('{"questions": []}'))
        shares = []
        model = OpenAIGenerator(server.base_url, "", "terms")
        extraction = Extraction("zh", keywords=False, questions=True, reader=model)
        sources = [Source("甲", "甲"), Source("乙", "乙")]
        prepare(sources, tokenizers=[], embedder=embedder("hashing"), extraction=extraction, on_embedded=shares.append)

        assert shares == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.django_db
class TestWriting:
    @pytest.fixture
    def kb(self):
        return make_kb()

    @pytest.fixture
    def chunk(self, kb):
        document = Document.objects.create(knowledge_base=kb, sha256="0")
        return Chunk(knowledge_base=kb, document=document, position=0, text="甲", content_hash="")

    def prepared(self, *, keywords=("甲",), questions=2):
        vector = np.ones(3, dtype=np.float32)
        return Prepared({}, vector, keywords, vector if keywords else None, (vector,) * questions)

    def stored(self, chunk):
        rows = ChunkEmbedding.objects.filter(chunk=chunk).order_by("kind", "ordinal")
        return list(rows.values_list("kind", "ordinal", "model"))

    def test_a_chunk_is_written_with_all_its_vectors_and_keywords(self, chunk):
        write_chunks([chunk], [self.prepared()], model_id="m")

        assert self.stored(chunk) == [
            ("content", 0, "m"),
            ("keywords", 0, "m"),
            ("question", 0, "m"),
            ("question", 1, "m"),
        ]
        assert Chunk.objects.get().keywords == ["甲"]

    def test_what_a_chunk_no_longer_has_goes(self, chunk):
        write_chunks([chunk], [self.prepared()], model_id="m")

        rewrite_chunks([(chunk, self.prepared(keywords=(), questions=1))], model_id="m")

        assert self.stored(chunk) == [("content", 0, "m"), ("question", 0, "m")]
        assert Chunk.objects.get().keywords == []

    def test_the_vectors_of_another_model_go_with_the_text_that_they_were_of(self, chunk):
        write_chunks([chunk], [self.prepared()], model_id="old")

        rewrite_chunks([(chunk, self.prepared())], model_id="new")

        assert {model for _kind, _ordinal, model in self.stored(chunk)} == {"new"}

    def test_vectors_are_rebuilt_beside_those_of_another_model(self, chunk):
        write_chunks([chunk], [self.prepared()], model_id="old")

        rebuild_vectors([(chunk, self.prepared())], "new")

        assert len(self.stored(chunk)) == 8

    def test_vectors_are_added_without_a_change_to_the_keywords(self, chunk):
        write_chunks([chunk], [self.prepared()], model_id="old")

        add_vectors([(chunk, self.prepared(keywords=()))], "new")

        assert len(self.stored(chunk)) == 7
        assert Chunk.objects.get().keywords == ["甲"]

    def test_questions_that_were_found_are_stored_and_others_stay(self, chunk):
        write_chunks([chunk], [self.prepared()], model_id="m")
        rewrite_chunks([(chunk, replace(self.prepared(), questions=("何时?",)))], model_id="m")
        assert Chunk.objects.get().questions == ["何时?"]

        rewrite_chunks([(chunk, self.prepared())], model_id="m")

        assert Chunk.objects.get().questions == ["何时?"]

    def test_lexemes_are_stored_with_the_postings(self, kb, chunk):
        [prepared] = ready(Source("保修期", "保修期"))
        write_chunks([chunk], [prepared], model_id="hashing")

        assert "~保修" in ChunkPostings.objects.get(chunk=chunk).lexemes
