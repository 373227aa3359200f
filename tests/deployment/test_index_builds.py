"""What a bulk command leaves behind for the first search of another process."""

import json

import pytest

ROWS = 40
QUERY = "第 7 条 保修"


@pytest.fixture
def stack(servers):
    servers.environment["VECTOR_INDEX_MIN_ROWS"] = str(ROWS // 2)
    return servers


@pytest.fixture
def rows(stack):
    return stack.rows


def beir(folder):
    folder.mkdir()
    lines = [{"_id": str(n), "title": "", "text": f"第 {n} 条 保修 期限 为 {n} 个月"} for n in range(ROWS)]
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return [("import_beir", str(folder))]


def texts(folder):
    folder.mkdir()
    for number in range(ROWS):
        (folder / f"{number}.txt").write_text(f"第 {number} 条 保修 期限 为 {number} 个月")
    return [("ingest", str(folder), "--create", "--inline")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("make", [beir, texts])
def test_a_bulk_command_leaves_nothing_to_build_to_the_first_search(stack, rows, tmp_path, make):
    name = f"bulk-{make.__name__}"
    for command in make(tmp_path / name):
        stack.manage(*command, "--kb", name)

    [(kb_id,)] = rows("SELECT id FROM kb_knowledgebase WHERE name = %s", name)
    base = (
        "SELECT i.version = v.version, i.chunk_count FROM bm25_indexes i JOIN kb_versions v USING (knowledge_base_id)"
        " WHERE knowledge_base_id = %s"
    )
    assert rows(base, kb_id) == [(True, ROWS)]
    valid = (
        "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE starts_with(c.relname, %s)"
    )
    assert rows(valid, f"hnsw_{kb_id}_") == [(True,)]
    assert rows("SELECT count(*) FROM kb_vectorindex WHERE knowledge_base_id = %s", kb_id) == [(1,)]
    analyzed = "SELECT relname FROM pg_stat_user_tables WHERE last_analyze IS NOT NULL"
    assert {"kb_chunk", "kb_chunkpostings", "kb_chunkembedding"} <= {table for (table,) in rows(analyzed)}
    assert rows("SELECT gin_clean_pending_list('postings_lexemes')") == [(0,)], "pages that searches would read through"

    answer = json.loads(stack.manage("search", QUERY, "--kb", name, "--json").stdout)
    assert [note["code"] for note in answer["degraded"]] == ["hashing_embedder"]
    assert answer["results"]


@pytest.mark.django_db(transaction=True)
def test_an_imported_archive_has_its_indexes_at_once(stack, rows, tmp_path):
    [corpus] = beir(tmp_path / "corpus")
    stack.manage_in_turn(
        [*corpus, "--kb", "exported"],
        ["export_kb", "--kb", "exported", str(tmp_path / "kb.zip")],
        ["import_kb", str(tmp_path / "kb.zip"), "--name", "again"],
    )

    [(kb_id,)] = rows("SELECT id FROM kb_knowledgebase WHERE name = 'again'")
    assert rows("SELECT chunk_count FROM bm25_indexes WHERE knowledge_base_id = %s", kb_id) == [(ROWS,)]
    assert rows("SELECT count(*) FROM pg_class WHERE starts_with(relname, %s)", f"hnsw_{kb_id}_") == [(1,)]
