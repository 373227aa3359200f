"""Makes chats of a knowledge base in a running installation: by link, with a password, and for the website that is named.

`python -m tests.browser.chats KB_ID ORIGIN`, with the environment of the server; prints the keys of links as JSON.
"""

import json
import sys

import django

from config import embedded

NAMES = {
    "by-link": "水泵助手",
    "by-password": "水泵内部助手",
    "embedded": "水泵网站助手",
    "members": "水泵成员助手",
    "unkept": "水泵匿名助手",
}


def make(kb_id, origin):
    from kb.access.models import Principal
    from kb.assistants.services.assistants import assistant_create, draft_of, link_create, version_publish
    from kb.assistants.services.entry import link_token
    from kb.assistants.settings import AssistantSettings
    from kb.models import KnowledgeBase

    owner = Principal(KnowledgeBase.objects.get(pk=kb_id).owner)
    settings = AssistantSettings(
        opening="有关水泵的问题，都可以在这里问。", suggested_questions=("水泵的油位多久检查一次？",)
    )
    made = {}
    for slug, fields in {
        "by-link": {"access": "link"},
        "by-password": {"access": "public", "password": "correct horse"},
        "embedded": {"access": "link", "origins": [origin]},
        "members": {"access": "private", "origins": [origin]},
        "unkept": {"access": "public", "keeps_text": False},
    }.items():
        assistant = assistant_create(
            owner, name=NAMES[slug], slug=slug, knowledge_base_ids=[kb_id], settings=settings, **fields
        )
        version_publish(owner, draft_of(assistant))
        if fields["access"] == "link":
            made[slug] = link_token(link_create(owner, assistant))
    return made


if __name__ == "__main__":
    embedded.ensure()
    django.setup()
    print(json.dumps(make(int(sys.argv[1]), sys.argv[2])))
