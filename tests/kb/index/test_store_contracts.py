import pytest

from tests.kb.index.contract import STATUTE, KeywordStoreContract, VectorStoreContract


class TestPgVector(VectorStoreContract):
    store = "postgres"


@pytest.mark.usefixtures("milvus")
class TestMilvus(VectorStoreContract):
    store = "milvus"


@pytest.mark.usefixtures("chroma")
class TestChroma(VectorStoreContract):
    store = "chroma"


@pytest.mark.usefixtures("embedded_chroma")
class TestEmbeddedChroma(VectorStoreContract):
    store = "chroma"


class TestOwnKeywords(KeywordStoreContract):
    store = "postgres"


@pytest.mark.usefixtures("milvus")
class TestMilvusKeywords(KeywordStoreContract):
    store = "milvus"

    def test_a_particle_alone_finds_nothing(self):
        kb, chunks = self.new_kb(*STATUTE)

        assert chunks[3] not in self.search(kb, "合同终止的效力")[0]
        assert self.search(kb, "的") == ([], [])
