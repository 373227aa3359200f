"""Requests that schemathesis makes of the description of OpenAI's protocol."""

import pytest
import schemathesis
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from kb.agents.openai.urls import DESCRIPTION, endpoints
from tests.described import ANSWERED, CONFIG, REFUSED, closing, one_connection  # noqa: F401 - a fixture

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("assistant")]

# Fields that the protocol has and the description does not are taken as they are.
CHECKS = {
    "positive_data_acceptance": {"expected-statuses": ANSWERED},
    "negative_data_rejection": {"expected-statuses": [*REFUSED, "2xx", "405"]},
}


def _described():
    with patched_settings(DESCRIPTION):
        found = SchemaGenerator(patterns=endpoints).get_schema(request=None, public=True)
    return found | {"paths": {f"/v1{path}": methods for path, methods in found["paths"].items()}, "servers": []}


schema = schemathesis.openapi.from_dict(_described(), config=SchemathesisConfig.from_dict(CONFIG | {"checks": CHECKS}))
schema.app = closing


@schema.parametrize()
@settings(suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_is_described(case, secret, llm):
    case.headers["Authorization"] = f"Bearer {secret}"
    if case.path_parameters:
        case.path_parameters["slug"] = "heaters"
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = "heaters"
    case.call_and_validate()


def test_the_description_is_served(client):
    found = client.get("/v1/openapi", headers={"Accept": "application/json"}).json()
    assert found["paths"].keys() == {"/models", "/models/{slug}", "/chat/completions"}
    assert found["servers"] == [{"url": "/v1"}]
