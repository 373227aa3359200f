import pytest

from kb.base.errors import Rejected
from kb.graph.services.entities import entity_update
from kb.graph.services.tables import MAX_BYTES, Table, graph_export, graph_import, graph_import_plan, read_bytes
from kb.models import Concept, Entity, GraphFact, Origin
from tests.factories import make_document, make_kb, names_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]


@pytest.fixture
def kb():
    return make_kb()


def stated(kb):
    return sorted(GraphFact.objects.filter(knowledge_base=kb).values_list("subject", "predicate", "object"))


def exported(kb, table):
    return "".join(graph_export(kb, table))


def effects(plan):
    return [(row.line, row.effect.value) for row in plan.rows]


def test_entities_are_new_or_merged_by_name_and_alias(kb):
    entity_update(Entity(knowledge_base=kb), name="IBM")
    GraphFact.objects.create(knowledge_base=kb, subject="Big Blue", predicate="总部", object="阿蒙克")
    text = "name,kind,description,aliases\n国际商业机器公司,组织,,ibm|Big Blue\n阿蒙克,城市,纽约州,Armonk\nIBM,,,\n"

    plan = graph_import_plan(kb, Table.ENTITIES, text)
    assert Entity.objects.count() == 1
    graph_import(kb, Table.ENTITIES, text)

    assert effects(plan) == [(2, "changed"), (3, "new"), (4, "same")]
    ibm = Entity.objects.get(name="IBM")
    assert set(names_of(ibm)) == {"IBM", "国际商业机器公司", "Big Blue"}
    assert ibm.kind == "组织"
    assert Entity.objects.get(name="阿蒙克").origin == Origin.IMPORT
    assert stated(kb) == [("IBM", "总部", "阿蒙克")]
    assert effects(graph_import_plan(kb, Table.ENTITIES, text)) == [(2, "same"), (3, "same"), (4, "same")]


def test_a_row_that_names_two_entities_is_an_error_and_nothing_is_imported(kb):
    entity_update(Entity(knowledge_base=kb), name="IBM")
    entity_update(Entity(knowledge_base=kb), name="Intel")
    text = "名称,别名\n阿蒙克,\nIBM,Intel\n"

    with pytest.raises(Rejected, match=r"Line 3: .*merge them first"):
        graph_import(kb, Table.ENTITIES, text)

    assert Entity.objects.count() == 2
    graph_import(kb, Table.ENTITIES, text, skip_errors=True)
    assert Entity.objects.count() == 3


@pytest.mark.parametrize("header", ["主体\t关系\t客体\t文档\t块", "主语\t谓词\t宾语\t文档\t块"])
def test_facts_are_imported_with_the_chunk_that_states_them(kb, header):
    document = make_document(kb, "一", "智能温控器由 Acme 生产。", source="手册.pdf", title="手册")
    entity_update(Entity(knowledge_base=kb), name="Acme", aliases=["艾克美"])
    found = GraphFact.objects.create(
        knowledge_base=kb, subject="门锁", predicate="生产商", object="Acme", origin=Origin.LLM
    )
    text = f"{header}\n智能温控器\t生产商\t艾克美\t手册.pdf\t2\n门锁\t生产商\tAcme\t\t\n"

    plan = graph_import(kb, Table.FACTS, text)

    assert effects(plan) == [(2, "new"), (3, "same")]
    assert stated(kb) == [("智能温控器", "生产商", "Acme"), ("门锁", "生产商", "Acme")]
    new = GraphFact.objects.get(subject="智能温控器")
    assert (new.origin, new.source_chunk) == (Origin.IMPORT, document.chunks.get(position=1))
    found.refresh_from_db()
    assert found.origin == Origin.IMPORT  # it stays, whatever becomes of the documents


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a,,b,,", "all needed"),
        ("a,is,b,missing.pdf,", "no document"),
        ("a,is,b,notes.txt,7", "no chunk 7"),
        ("a,is,b,notes.txt,x", "no chunk x"),
        (f"{'a' * 201},is,b,,", "200 characters"),
        ("a,is\0,b,,", "cannot be stored"),
        ("IBM,is,Big Blue,,", "two names of one entity"),
    ],
)
def test_a_bad_line_of_facts_is_told_with_its_number(kb, line, told):
    make_document(kb, "一")
    entity_update(Entity(knowledge_base=kb), name="IBM", aliases=["Big Blue"])

    [row] = graph_import_plan(kb, Table.FACTS, f"subject,predicate,object,document,chunk\n{line}\n").errors

    assert row.line == 2
    assert told in row.message


@pytest.mark.parametrize(
    ("table", "text", "told"),
    [
        (Table.CONCEPTS, "name,synonyms\n,x\n", "name is missing"),
        (Table.CONCEPTS, f"name\n{'a' * 201}\n", "200 characters"),
        (Table.ENTITIES, "name,kind\n,x\n", "name is missing"),
        (Table.ENTITIES, f"name,kind\na,{'b' * 81}\n", "and a kind 80"),
        (Table.ENTITIES, "name,description\na,b\0c\n", "cannot be stored"),
    ],
)
def test_a_bad_line_of_concepts_or_entities_is_told_too(kb, table, text, told):
    [row] = graph_import_plan(kb, table, text).errors

    assert row.line == 2
    assert told in row.message


def test_concepts_are_imported_with_wider_ones_that_come_later(kb):
    Concept.objects.create(knowledge_base=kb, name="假期")
    text = "name,parent,synonyms\n年假,假期,年休假;带薪假\n假期,人事,\n人事,,HR\n"

    plan = graph_import(kb, Table.CONCEPTS, text)

    assert effects(plan) == [(2, "new"), (3, "changed"), (4, "new")]
    leave = Concept.objects.get(name="年假")
    assert leave.parent.parent.name == "人事"
    assert set(leave.terms.values_list("text", flat=True)) == {"年假", "年休假", "带薪假"}
    assert graph_import_plan(kb, Table.CONCEPTS, text).counts["same"] == 3


def test_a_ring_of_concepts_and_an_unknown_wider_one_are_errors(kb):
    text = "name,parent\na,b\nb,a\nc,d\n"

    plan = graph_import_plan(kb, Table.CONCEPTS, text)

    assert effects(plan) == [(2, "new"), (3, "error"), (4, "error")]


@pytest.mark.parametrize("table", Table)
def test_an_export_is_what_an_import_reads(kb, table):
    entity_update(Entity(knowledge_base=kb), name="IBM", kind="组织", aliases=["=蓝色巨人", "Big, Blue"])
    make_document(kb, "一")
    graph_import(kb, Table.CONCEPTS, "name,parent,synonyms\n年假,假期,年休假\n假期,,\n")
    GraphFact.objects.create(knowledge_base=kb, subject="IBM", predicate="说", object='"x"')
    other = make_kb(kb.owner)

    graph_import(other, table, exported(kb, table).removeprefix("\ufeff"))

    assert exported(other, table) == exported(kb, table)


def test_the_encodings_of_chinese_spreadsheets_are_read():
    text = "name,kind\n国际商业机器公司,组织\n"

    assert read_bytes(text.encode("utf-8-sig")) == text
    assert read_bytes(text.encode("gb18030")) == text


def test_other_bytes_are_refused():
    for data, code in [(b"x" * (MAX_BYTES + 1), "too_large"), (b"\xff\xfa\x00\x81", "undecodable")]:
        with pytest.raises(Rejected) as caught:
            read_bytes(data)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_header"),
        ("kind\nx\n", "bad_header"),
        ("name,colour\nx,y\n", "bad_header"),
        ("name\n\n", "no_rows"),
        ('name\n"x\n', "no_csv"),
        ("name\n" + "x\n" * 20_001, "too_many_rows"),
    ],
)
def test_a_file_that_is_no_table_of_entities_is_refused(kb, text, code):
    with pytest.raises(Rejected) as caught:
        graph_import_plan(kb, Table.ENTITIES, text)

    assert caught.value.code == code


def test_a_row_of_more_names_than_an_entity_can_have_is_an_error(kb):
    many = "|".join(f"name {number}" for number in range(51))
    plan = graph_import_plan(kb, Table.ENTITIES, f"name,aliases\nIBM,{many}\n")
    assert effects(plan) == [(2, "error")]


def test_a_taxonomy_of_twenty_thousand_steps_is_planned_step_by_step(kb):
    """Where each row led up to the first one, this took two hundred million steps."""
    rows = "".join(f"c{number},c{number - 1}\n" for number in range(1, 20_000))
    plan = graph_import_plan(kb, Table.CONCEPTS, f"name,parent\nc0,\n{rows}")
    assert plan.counts == {"new": 20_000, "changed": 0, "same": 0, "error": 0}


def test_a_concept_is_not_its_own_wider_one(kb):
    assert effects(graph_import_plan(kb, Table.CONCEPTS, "name,parent\na,a\n")) == [(2, "error")]


def test_facts_of_many_entities_are_taken_entity_by_entity(kb):
    facts = [GraphFact(knowledge_base=kb, subject=f"alias {n}", predicate="is", object="x") for n in range(300)]
    for fact in facts:
        fact.save()
    rows = "".join(f"name {n},alias {n}\n" for n in range(300))
    graph_import(kb, Table.ENTITIES, f"name,aliases\n{rows}")
    assert {subject for subject, _is, _x in stated(kb)} == {f"name {n}" for n in range(300)}
