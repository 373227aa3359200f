import pytest

from kb.models import Chunk, ChunkParent
from kb.search.selectors import PassageReader
from retrieval.types import PageRegion
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", "thermostat warranty")
    return kb


@pytest.fixture
def reader_of():
    return lambda user, **scope: PassageReader(principal(user, **scope))


def ids(document):
    return list(Chunk.objects.filter(document=document).order_by("position").values_list("pk", flat=True))


def texts(passages):
    return [passage.text for passage in passages]


def test_a_passage_carries_its_provenance(kb, reader_of):
    document = make_document(
        kb, "第一", "第二", title="手册", source="a.md", source_type="qa", metadata={"year": 2024}, tags=["保修"]
    )
    chunk_id = ids(document)[1]
    Chunk.objects.filter(pk=chunk_id).update(page=3, heading_path=["一", "二"])

    passage = reader_of(kb.owner).fetch([chunk_id])[chunk_id]

    assert (passage.chunk_id, passage.document_id, passage.kb_id) == (chunk_id, document.pk, kb.pk)
    assert (passage.title, passage.source, passage.page, passage.text) == ("手册", "a.md", 3, "第二")
    assert (passage.heading_path, passage.source_type, passage.position) == (("一", "二"), "qa", 1)
    assert passage.metadata == {"year": 2024, "source_type": "qa", "tags": ["保修"]}


def test_a_passage_says_where_it_stands_and_a_longer_one_where_that_does(kb, reader_of):
    document = make_document(kb, "第一句。", "第二句。")
    parent = give_parent(document, "第一句。第二句。")
    first, second = ids(document)
    Chunk.objects.filter(pk=second).update(seconds=75, regions=[{"page": 3, "box": [0.1, 0.2, 0.3, 0.4]}])

    passages = reader_of(kb.owner).fetch([first, second])
    assert [(passages[each].seconds, passages[each].regions) for each in (first, second)] == [
        (None, ()),
        (75, (PageRegion(3, (0.1, 0.2, 0.3, 0.4)),)),
    ]
    given = reader_of(kb.owner).parents(list(passages.values()))
    assert given[second].regions == passages[second].regions  # as of a parent of an earlier release
    parent.regions = [{"page": 2, "box": None}, {"page": 3, "box": [0, 0, 1, 1]}]
    parent.save()
    given = reader_of(kb.owner).parents(list(passages.values()))
    assert given[first].regions == (PageRegion(2, None), PageRegion(3, (0, 0, 1, 1)))
    assert given[second].seconds == 75


def test_all_are_read_in_one_query(kb, reader_of, django_assert_num_queries):
    document = make_document(kb, *map(str, range(120)))
    wanted, reader = ids(document), reader_of(make_member(kb))

    with django_assert_num_queries(1):
        assert set(reader.fetch(wanted)) == set(wanted)


def test_disabled_and_unknown_chunks_do_not_exist(kb, reader_of):
    on, off = ids(make_document(kb, "在", "不在"))
    Chunk.objects.filter(pk=off).update(enabled=False)

    assert set(reader_of(kb.owner).fetch([on, off, off + 1_000])) == {on}


def test_only_what_the_principal_may_see_is_read(kb, reader_of):
    mine, theirs = ids(make_document(kb, "甲"))[0], ids(make_document(make_kb(), "乙"))[0]

    assert set(reader_of(make_member(kb)).fetch([mine, theirs])) == {mine}
    assert set(reader_of(make_user(superuser=True)).fetch([mine, theirs])) == {mine, theirs}


def test_a_key_bound_to_another_knowledge_base_reads_nothing(kb, reader_of):
    chunk_id = ids(make_document(kb, "甲"))[0]

    assert reader_of(kb.owner, kb_ids=frozenset({kb.pk + 1_000})).fetch([chunk_id]) == {}


def test_a_user_who_was_switched_off_reads_nothing(kb, reader_of):
    chunk_id = ids(make_document(kb, "甲"))[0]
    kb.owner.is_active = False

    assert reader_of(kb.owner).fetch([chunk_id]) == {}


def test_nothing_asked_for_asks_nothing(kb, reader_of, django_assert_num_queries):
    reader = reader_of(kb.owner)

    with django_assert_num_queries(0):
        assert reader.fetch([]) == {}
        assert reader.neighbours([], 2) == {}


@pytest.fixture
def row(kb, reader_of):
    """Five chunks of one document, as passages."""
    wanted = ids(make_document(kb, *"甲乙丙丁戊"))
    found = reader_of(kb.owner).fetch(wanted)
    return [found[chunk_id] for chunk_id in wanted]


def test_neighbours_stand_in_reading_order_without_the_passage_itself(kb, row, reader_of):
    near = reader_of(kb.owner).neighbours([row[2]], 2)

    assert texts(near[row[2].chunk_id]) == ["甲", "乙", "丁", "戊"]


def test_neighbours_of_several_passages_come_in_one_query(kb, row, reader_of, django_assert_num_queries):
    reader = reader_of(kb.owner)

    with django_assert_num_queries(1):
        near = reader.neighbours([row[1], row[2]], 1)

    assert texts(near[row[1].chunk_id]) == ["甲", "丙"]
    assert texts(near[row[2].chunk_id]) == ["乙", "丁"]


def test_neighbours_end_with_the_document(kb, row, reader_of):
    make_document(kb, "另一篇")

    near = reader_of(kb.owner).neighbours([row[0], row[4]], 1)

    assert texts(near[row[0].chunk_id]) == ["乙"]
    assert texts(near[row[4].chunk_id]) == ["丁"]


def test_a_disabled_neighbour_leaves_a_gap(kb, row, reader_of):
    Chunk.objects.filter(pk=row[1].chunk_id).update(enabled=False)

    near = reader_of(kb.owner).neighbours([row[2]], 1)

    assert texts(near[row[2].chunk_id]) == ["丁"]


def test_neighbours_are_for_those_who_may_see_them(kb, row, reader_of):
    assert reader_of(make_user()).neighbours([row[2]], 1)[row[2].chunk_id] == ()


def test_a_passage_without_neighbours_has_none(kb, reader_of):
    chunk_id = ids(make_document(kb, "独一"))[0]
    alone = reader_of(kb.owner).fetch([chunk_id])[chunk_id]

    assert reader_of(kb.owner).neighbours([alone, alone._replace(chunk_id=0, document_id=0)], 3) == {
        chunk_id: (),
        0: (),
    }


def give_parent(document, text, *, places=True):
    """As of chunks that were cut from it one after another; without places, as of an earlier release."""
    parent = ChunkParent.objects.create(
        knowledge_base=document.knowledge_base, document=document, position=0, text=text
    )
    end = 0
    for chunk in Chunk.objects.filter(document=document).order_by("position"):
        begin = text.index(chunk.text, end)
        end = begin + len(chunk.text)
        spans = [0, 0, begin, end] if places else None
        Chunk.objects.filter(pk=chunk.pk).update(parent=parent, parent_spans=spans)
    return parent


def test_a_chunk_knows_the_longer_passage_that_is_given_in_its_place(kb, reader_of, django_assert_num_queries):
    document = make_document(kb, "第一句。", "第二句。")
    parent = give_parent(document, "第一句。第二句。")
    reader, wanted = reader_of(make_member(kb)), ids(document)
    passages = reader.fetch(wanted)
    assert {each.parent_id for each in passages.values()} == {parent.pk}
    with django_assert_num_queries(1):
        given = reader.parents(list(passages.values()))
    assert {key: (each.text, each.matched) for key, each in given.items()} == {
        wanted[0]: ("第一句。第二句。", "第一句。"),
        wanted[1]: ("第一句。第二句。", "第二句。"),
    }


def test_a_longer_passage_shows_what_a_curator_has_changed_and_not_what_is_switched_off(kb, reader_of):
    document = make_document(kb, "第一句。", "第二句。", "第三句。")
    give_parent(document, "第一句。第二句。第三句。")
    chunks = Chunk.objects.filter(document=document)
    chunks.filter(position=0).update(text="改过了。", cut_text="第一句。")
    chunks.filter(position=1).update(enabled=False)
    reader = reader_of(kb.owner)
    [passage] = reader.fetch(ids(document)[2:]).values()
    assert reader.parents([passage])[passage.chunk_id].text == "改过了。第三句。"


def test_a_word_that_is_switched_off_leaves_longer_words_whole(kb, reader_of):
    document = make_document(kb, "November", "No", "other")
    give_parent(document, "November No other")
    Chunk.objects.filter(text="No").update(enabled=False)
    reader = reader_of(kb.owner)
    passages = list(reader.fetch(ids(document)).values())
    assert {each.text for each in reader.parents(passages).values()} == {"November other"}


def test_a_longer_passage_of_an_earlier_release_shows_nothing_that_is_switched_off(kb, reader_of):
    document = make_document(kb, "November", "No", "other")
    give_parent(document, "November No other", places=False)
    reader = reader_of(kb.owner)
    passages = list(reader.fetch(ids(document)).values())
    assert {each.text for each in reader.parents(passages).values()} == {"November No other"}
    Chunk.objects.filter(text="No").update(enabled=False)
    assert {each.text for each in reader.parents(passages).values()} == {"November\nother"}


def test_a_longer_passage_of_another_knowledge_base_is_not_given(kb, reader_of):
    document = make_document(kb, "第一句。", "第二句。")
    give_parent(document, "第一句。第二句。")
    passages = list(reader_of(kb.owner).fetch(ids(document)).values())
    assert reader_of(make_user()).parents(passages) == {}


def test_chunks_without_a_longer_passage_cost_no_query(kb, reader_of, django_assert_num_queries):
    reader = reader_of(kb.owner)
    passages = list(reader.fetch(ids(make_document(kb, "甲"))).values())
    with django_assert_num_queries(0):
        assert reader.parents(passages) == {}


def test_the_questions_of_a_passage_are_read_and_those_of_its_neighbours_are_not(row, kb, reader_of):
    Chunk.objects.update(questions=["谁?"])
    assert reader_of(kb.owner).fetch([row[2].chunk_id])[row[2].chunk_id].questions == ("谁?",)
    near = reader_of(kb.owner).neighbours([row[2]], 1)[row[2].chunk_id]
    assert [each.questions for each in near] == [(), ()]
