"""Fills the database of a served application with what every page is opened for, and prints their ids as JSON.

`python -m tests.browser.furnish`, with the environment of the server.
"""

import json

import django

from config import embedded


def main():
    embedded.ensure()
    django.setup()
    from tests.factories import make_document, make_kb, make_user
    from tests.kb.admin.pages import make_bare_objects, make_objects

    curator, newcomer = make_user("curator"), make_user("newcomer")
    kb = make_kb(curator, "legal")
    document = make_document(
        kb,
        "违约金过高的，可以请求减少。",
        "诉讼时效期间为三年。",
        *(f"第{number}条，合同自成立时生效。" for number in range(3, 30)),
        title="Contracts",
    )
    ids = {"rows": make_objects(kb, document, curator), "empty": make_bare_objects(newcomer)}
    print(json.dumps(ids, default=str))


if __name__ == "__main__":
    main()
