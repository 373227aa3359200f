"""Objects for tests, made through the services so that they are what production makes."""

import itertools

from django.contrib.auth.models import Group

from kb.access.models import GROUP_PREFIX
from kb.base.text import hash_content
from kb.index.services.writing import Prepared, embed, tokenize, write_chunks
from kb.models import ApiKey, Chunk, Document, GroupMembership, KnowledgeBase, Membership, Principal, User
from retrieval.types import searchable_text

_numbers = itertools.count(1)


def make_user(name=None, *, staff=True, superuser=False):
    name = name or f"user{next(_numbers)}"
    return User.objects.create_user(name, password="correct horse", is_staff=staff, is_superuser=superuser)


def make_kb(owner=None, name=None, *, embedding_model="hashing", language="zh"):
    from kb.content.services import knowledge_base_create

    kb = knowledge_base_create(
        name=name or f"kb{next(_numbers)}",
        owner=owner or make_user(),
        embedding_model=embedding_model,
        language=language,
    )
    return KnowledgeBase.objects.select_related("profile", "version_row").get(pk=kb.pk)


def make_document(kb, *texts, title="", source="notes.txt", **fields):
    """A ready document of one chunk a text, indexed in both channels."""
    from kb.index.services.writing import tokenizers_of
    from kb.providers.embedding_models import embedder

    document = Document(
        knowledge_base=kb,
        title=title,
        source=source,
        sha256=hash_content(f"{next(_numbers)}"),
        status=Document.Status.READY,
        progress=100,
        **fields,
    )
    document.save()
    model = embedder(kb.embedding_model)
    searchable = [searchable_text(title, (), text) for text in texts]
    vectors = embed(searchable, model)
    prepared = [Prepared(*pair) for pair in zip(tokenize(searchable, tokenizers_of(kb)), vectors, strict=True)]
    chunks = [
        Chunk(
            knowledge_base=kb,
            document=document,
            position=position,
            text=text,
            content_hash=hash_content(text),
            token_count=len(text),
        )
        for position, text in enumerate(texts)
    ]
    write_chunks(chunks, prepared, model_id=model.model_id)
    return document


def make_member(kb, role=Membership.Role.VIEWER, user=None):
    user = user or make_user()
    Membership.objects.create(knowledge_base=kb, user=user, role=role)
    return user


def make_group(kb, role, *users, name=None):
    """A group of the provider with a role in a knowledge base."""
    group = Group.objects.create(name=f"{GROUP_PREFIX}{name or f'group{next(_numbers)}'}")
    group.user_set.set(users)
    GroupMembership.objects.create(knowledge_base=kb, group=group, role=role)
    return group


def make_api_key(user, *knowledge_bases, scope=ApiKey.Scope.READ, **fields):
    """Returns the key and its secret, which is shown this once."""
    key, secret = ApiKey.objects.create_key(name="test", user=user, scope=scope, bound=bool(knowledge_bases), **fields)
    key.knowledge_bases.set(knowledge_bases)
    return key, secret


def principal(user, **scope):
    return Principal(user=user, **scope)


def names_of(entity):
    """All names of an entity, that which it is shown by first."""
    return [entity.name, *entity.aliases]
