"""The official client and LangChain's, unchanged, against a server."""

import openai
import pytest
from langchain_openai import ChatOpenAI

from tests.servers import Reply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("assistant")]

QUESTION = {"role": "user", "content": "How long does the warranty last?"}


@pytest.fixture
def client(live_server, secret):
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key=secret, max_retries=0) as made:
        yield made


@pytest.fixture
def model(live_server, secret):
    return ChatOpenAI(model="heaters", base_url=f"{live_server.url}/v1", api_key=secret, max_retries=0)


def test_the_official_client_lists_models(client):
    assert [each.id for each in client.models.list()] == ["heaters"]
    assert client.models.retrieve("heaters").object == "model"


def test_the_official_client_reads_an_answer(client, llm):
    llm.always("chat", Reply("Two years [1].", usage={"prompt_tokens": 70, "completion_tokens": 5}))
    found = client.chat.completions.create(model="heaters", messages=[QUESTION])
    assert (found.choices[0].message.content, found.usage.total_tokens) == ("Two years [1].", 75)
    assert found.citations[0]["label"] == "ProductFAQ.md"


def test_the_official_client_reads_a_stream(client, llm):
    llm.always("chat", Reply(["Two ", "years", " [1]."]))
    with client.chat.completions.stream(
        model="heaters", messages=[QUESTION], stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Two years [1]."
    assert final.usage.total_tokens > 0


def test_the_official_client_knows_the_errors(client, live_server, llm):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=[QUESTION])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="heaters", messages=[QUESTION], n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    llm.always("chat", Reply(["Two ", "years"], break_after=1))
    with pytest.raises(openai.APIError) as broken:
        list(client.chat.completions.create(model="heaters", messages=[QUESTION], stream=True))
    assert broken.value.code == "chat_model_unavailable"


def test_langchain_reads_an_answer(model, llm):
    llm.always("chat", Reply("Two years [1]."))
    assert model.invoke([("system", "Be brief."), ("human", QUESTION["content"])]).content == "Two years [1]."


def test_langchain_reads_a_stream(model, llm):
    llm.always("chat", Reply(["Two ", "years", " [1]."]))
    assert "".join(chunk.content for chunk in model.stream(QUESTION["content"])) == "Two years [1]."
