import pytest
from django.urls import reverse

from kb.graph.readers import KnowledgeGraph
from kb.models import Concept, ConceptTerm
from tests.factories import make_kb, make_member, make_user, principal

ADD = "admin:kb_concept_add"
CHANGE = "admin:kb_concept_change"
LIST = "admin:kb_concept_changelist"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def concept(kb):
    concept = Concept.objects.create(knowledge_base=kb, name="大语言模型")
    ConceptTerm(concept=concept, text="LLM", kind="abbreviation").save()
    return concept


@pytest.fixture
def foreign_concept(db):
    return Concept.objects.create(knowledge_base=make_kb(make_user("stranger"), "stranger-base"), name="stranger-idea")


def form(*terms, **values):
    """`terms` are (text, kind), or (text, kind, primary key) of a stored one, with a fourth value to delete it."""
    data = {"name": "概念", "description": "", "parent": "", **values}
    stored = [term for term in terms if len(term) > 2]
    data |= {"terms-TOTAL_FORMS": len(terms), "terms-INITIAL_FORMS": len(stored)}
    for n, (text, kind, *rest) in enumerate([*stored, *(term for term in terms if len(term) == 2)]):
        data |= {f"terms-{n}-text": text, f"terms-{n}-kind": kind, f"terms-{n}-id": rest[0] if rest else ""}
        if len(rest) > 1:
            data[f"terms-{n}-DELETE"] = "on"
    return data


def change(client, concept, *terms, **values):
    data = form(*terms, **{"name": concept.name, "concept": concept.pk, **values})
    return client.post(reverse(CHANGE, args=[concept.pk]), data)


def words(page):
    return page.content.decode()


def terms_of(concept):
    return {(term.text, term.kind) for term in concept.terms.all()}


def test_a_new_concept_is_found_by_its_name_and_its_synonyms(client, kb):
    response = client.post(reverse(ADD), form(("LLM", "abbreviation"), knowledge_base=kb.pk, name="大语言模型"))

    assert response.status_code == 302
    concept = Concept.objects.get()
    assert terms_of(concept) == {("大语言模型", "name"), ("LLM", "abbreviation")}
    (mention,) = KnowledgeGraph(principal(kb.owner)).mentions([kb.pk], "llm 是什么")
    assert mention.concept_id == concept.pk


def test_the_page_lists_the_other_names_only(client, concept):
    formset = client.get(reverse(CHANGE, args=[concept.pk])).context["inline_admin_formsets"][0].formset

    assert [each.instance.text for each in formset.initial_forms] == ["LLM"]


def test_a_renamed_concept_has_its_new_name_as_a_term(client, concept):
    term = concept.terms.get(text="LLM")

    change(client, concept, ("LLM", "abbreviation", term.pk), name="大模型")

    assert terms_of(concept) == {("大模型", "name"), ("LLM", "abbreviation")}


def test_a_concept_takes_the_name_of_a_synonym_that_is_deleted(client, concept):
    term = concept.terms.get(text="LLM")

    response = change(client, concept, ("LLM", "abbreviation", term.pk, "delete"), name="LLM")

    assert response.status_code == 302
    assert terms_of(concept) == {("LLM", "name")}


@pytest.mark.parametrize("text", ["大语言模型", " llm"])
def test_a_term_that_is_there_already_is_refused(client, concept, text):
    term = concept.terms.get(text="LLM")

    page = change(client, concept, ("LLM", "abbreviation", term.pk), (text, "synonym"))

    assert "is a term of this concept already" in words(page)
    assert len(terms_of(concept)) == 2


def test_a_new_term_that_waits_for_a_deletion_is_refused(client, concept):
    llm = concept.terms.get(text="LLM")

    page = change(client, concept, ("LLM", "abbreviation", llm.pk, "delete"), ("llm", "synonym"))

    assert "is a term of this concept already" in words(page)
    assert terms_of(concept) == {("大语言模型", "name"), ("LLM", "abbreviation")}


def test_a_synonym_can_be_spelt_again(client, concept):
    term = concept.terms.get(text="LLM")

    assert change(client, concept, ("llm", "abbreviation", term.pk)).status_code == 302
    assert ("llm", "abbreviation") in terms_of(concept)


@pytest.mark.parametrize("name", ["", "\u200b"])
def test_a_name_needs_visible_characters(client, kb, name):
    page = client.post(reverse(ADD), form(knowledge_base=kb.pk, name=name))

    assert page.status_code == 200
    assert not Concept.objects.exists()


def test_a_second_concept_of_one_name_is_refused(client, concept, kb):
    page = client.post(reverse(ADD), form(knowledge_base=kb.pk, name=concept.name))

    assert "choose another name" in words(page)


def test_renaming_to_another_concept_s_name_is_refused(client, concept, kb):
    other = Concept.objects.create(knowledge_base=kb, name="other")

    assert "choose another name" in words(change(client, other, name=concept.name))


def test_a_wider_concept_of_another_knowledge_base_is_refused(client, concept, curator):
    other = make_kb(curator, "other")

    page = client.post(reverse(ADD), form(knowledge_base=other.pk, parent=concept.pk))

    assert "same knowledge base" in words(page)


def test_a_narrower_concept_does_not_become_the_wider_one(client, concept, kb):
    narrower = Concept.objects.create(knowledge_base=kb, name="narrower", parent=concept)

    page = change(client, concept, parent=narrower.pk)

    assert "is narrower than this concept" in words(page)


def test_the_choice_of_a_wider_concept_offers_those_of_the_same_knowledge_base(client, concept, curator):
    Concept.objects.create(knowledge_base=make_kb(curator, "other"), name="elsewhere")
    page = client.get(reverse(CHANGE, args=[concept.pk]))
    url = page.context["adminform"].form.fields["parent"].widget.widget.get_url()

    results = client.get(f"{url}&app_label=kb&model_name=concept&field_name=parent&term=").json()["results"]

    assert [each["text"] for each in results] == ["大语言模型"]


def test_the_choice_of_a_wider_concept_offers_nothing_of_a_stranger(client, concept, foreign_concept):
    parameters = {"app_label": "kb", "model_name": "concept", "field_name": "parent", "term": ""}

    results = client.get(reverse("admin:autocomplete"), parameters).json()["results"]

    assert [each["text"] for each in results] == ["大语言模型"]


def test_a_stranger_s_concept_is_no_choice_for_a_wider_one(client, concept, foreign_concept):
    page = change(client, concept, parent=foreign_concept.pk)

    assert page.status_code == 200
    concept.refresh_from_db()
    assert concept.parent is None


def test_the_list_shows_the_other_names(client, concept):
    assert "LLM" in words(client.get(reverse(LIST)))


def test_a_concept_is_not_added_to_a_knowledge_base_that_the_user_may_only_read(client, curator):
    kb = make_kb(name="shared")
    make_member(kb, user=curator)

    client.post(reverse(ADD), form(knowledge_base=kb.pk))

    assert not Concept.objects.exists()


def test_a_reader_sees_a_concept_with_its_terms_and_changes_nothing(client, concept):
    client.force_login(make_member(concept.knowledge_base))

    page = client.get(reverse(CHANGE, args=[concept.pk]))

    assert "LLM" in words(page)
    assert change(client, concept, name="mine").status_code == 403
    assert client.post(reverse("admin:kb_concept_delete", args=[concept.pk]), {"post": "yes"}).status_code == 403


def test_a_concept_stays_in_its_knowledge_base(client, concept, curator):
    other = make_kb(curator, "other")

    change(client, concept, knowledge_base=other.pk)

    concept.refresh_from_db()
    assert concept.knowledge_base.name == "legal"


def test_searching_finds_a_concept_by_its_synonym(client, concept, kb):
    Concept.objects.create(knowledge_base=kb, name="other")

    rows = client.get(reverse(LIST), {"q": "llm"}).context["cl"].result_list

    assert list(rows) == [concept]


def test_deleting_a_selection_deletes_the_editable_ones(client, concept, curator):
    shared = make_kb(name="shared")
    make_member(shared, user=curator)
    kept = Concept.objects.create(knowledge_base=shared, name="kept")
    data = {"action": "delete_selected", "_selected_action": [concept.pk, kept.pk], "post": "yes"}

    client.post(reverse(LIST), data)

    assert list(Concept.objects.all()) == [kept]


@pytest.mark.parametrize("page", ["list", "add", "change", "delete"])
def test_a_page_takes_few_queries(client, concept, kb, page, django_assert_max_num_queries):
    for n in range(5):
        Concept.objects.create(knowledge_base=kb, name=f"narrower {n}", parent=concept)
    url = {
        "list": reverse(LIST),
        "add": reverse(ADD),
        "change": reverse(CHANGE, args=[concept.pk]),
        "delete": reverse("admin:kb_concept_delete", args=[concept.pk]),
    }[page]

    with django_assert_max_num_queries(13):
        assert client.get(url).status_code == 200
