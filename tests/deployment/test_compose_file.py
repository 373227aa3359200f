"""What can be said of Dockerfile and compose.yaml without building or starting a container."""

import json
import re
import shlex
import tomllib

import pytest

from tests.deployment.compose import ROOT, Unset, file_as_it_is, services

SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD")
ENVIRONMENT = dict.fromkeys(SECRETS, "0123456789abcdef") | {"ALLOWED_HOSTS": "zhiku.example"}
OURS = {"migrate", "web", "mcp", "worker", "long-worker", "beat"}
SERVERS = {"postgres", "broker", "cache"}
# The major version of PostgreSQL's client in Debian.
CLIENTS = {"bookworm": 15, "trixie": 17, "forky": 18}


@pytest.fixture
def every():
    return services(ENVIRONMENT)


def test_it_has_the_processes_of_the_design(every):
    assert set(every) == OURS | SERVERS


@pytest.mark.parametrize("missing", [*SECRETS, "ALLOWED_HOSTS"])
def test_it_refuses_to_start_without_a_secret(missing):
    with pytest.raises(Unset, match=f"{missing}.*env.example"):
        services({name: value for name, value in ENVIRONMENT.items() if name != missing})


def test_no_secret_has_a_default_and_none_stands_in_a_file():
    text = (ROOT / "compose.yaml").read_text()
    for name in SECRETS:
        assert f"${{{name}:-" not in text
        assert re.search(rf"^{name}=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_no_secret_is_part_of_a_command(every):
    for name, service in every.items():
        assert ENVIRONMENT["SECRET_KEY"] not in shlex.join(service.get("command", [])), name


def test_all_wait_for_the_migrations_and_these_for_postgresql(every):
    for name in OURS - {"migrate"}:
        waits = every[name]["depends_on"]
        assert waits["migrate"] == {"condition": "service_completed_successfully"}
        assert {each: waits[each]["condition"] for each in SERVERS} == dict.fromkeys(SERVERS, "service_healthy")
    assert every["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_all_tell_how_they_are_and_come_back(every):
    for name, service in every.items():
        if name == "migrate":
            assert service["restart"] == "on-failure"
            continue
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name
        assert service["deploy"]["resources"]["limits"]["memory"], name


def test_workers_take_all_queues_and_no_two_the_same(every):
    from django.conf import settings

    queues = {each.name for each in settings.CELERY_TASK_QUEUES}
    assert not any("queues" in word for word in every["worker"]["command"])
    (own,) = (word.partition("=")[2] for word in every["long-worker"]["command"] if word.startswith("--queues="))
    assert queues.isdisjoint(own.split(","))
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    assert routed <= queues | set(own.split(","))
    assert every["long-worker"]["healthcheck"]["test"][-1] == "long-worker"


def test_ours_can_gain_no_rights_and_write_to_volumes_and_a_tmpfs_only(every):
    declared = json.loads(re.search(r"^VOLUME (.+)$", final_stage(), re.MULTILINE)[1])
    for name in OURS:
        service = every[name]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert [each.split(":")[1] for each in service["volumes"]] == declared
        assert [each.split(":")[0] for each in service["tmpfs"]] == ["/tmp", "/metrics"]
        assert service["environment"]["PROMETHEUS_MULTIPROC_DIR"] == "/metrics", "not where others can fill the disk"
        assert not {"user", "privileged", "cap_add", "devices"} & set(service)


def test_the_image_starts_and_probes_the_web_process_as_compose_does(every):
    final, web = final_stage(), every["web"]
    assert json.loads(re.search(r"^CMD (.+)$", final, re.MULTILINE)[1]) == web["command"]
    stated, command = re.search(r"^HEALTHCHECK (.+) CMD (.+)$", final, re.MULTILINE).groups()
    health = web["healthcheck"]
    assert ["CMD", *json.loads(command)] == health["test"]
    options = dict(each.removeprefix("--").split("=") for each in stated.split())
    assert options == {key.replace("_", "-"): str(value) for key, value in health.items() if key != "test"}


def test_the_client_of_the_image_is_as_new_as_the_server(every):
    """pg_dump refuses a server that is newer than itself."""
    release = re.search(r"^ARG DEBIAN=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    server = int(re.search(r":pg(\d+)$", every["postgres"]["image"])[1])
    assert CLIENTS[release] >= server
    assert re.search(r"install .*postgresql-client", final_stage())


def final_stage():
    return (ROOT / "Dockerfile").read_text().split("\nFROM ")[-1]


def test_ours_run_without_rights_and_only_the_web_and_mcp_ports_are_open_and_to_this_host(every):
    for name in OURS:
        assert every[name]["read_only"] is True
        assert every[name]["cap_drop"] == ["ALL"]
    opened = {name: service["ports"] for name, service in every.items() if "ports" in service}
    assert opened == {"web": ["127.0.0.1:8000:8000"], "mcp": ["127.0.0.1:8001:8001"]}
    assert file_as_it_is()["networks"]["inside"] == {"internal": True}
    assert all(every[name]["networks"] == ["inside"] for name in SERVERS)


def test_broker_and_cache_are_two_servers_that_evict_nothing_and_anything(every):
    broker, cache = (" ".join(every[name]["command"]) for name in ("broker", "cache"))
    assert "noeviction" in broker
    assert "appendonly yes" in broker
    assert "allkeys-lru" in cache
    environment = every["web"]["environment"]
    assert "@broker:6379/" in environment["REDIS_URL"]
    assert "@cache:6379/" in environment["CACHE_URL"]


def test_every_volume_that_is_mounted_is_declared(every):
    declared = set(file_as_it_is()["volumes"])
    mounted = {each.split(":")[0] for service in every.values() for each in service.get("volumes", [])}
    assert mounted == declared


def test_the_image_holds_what_the_commands_need_and_is_not_run_as_root():
    text = (ROOT / "Dockerfile").read_text()
    final = final_stage()
    assert re.search(r"^USER zhiku$", final, re.MULTILINE)
    assert "HEALTHCHECK" in final
    assert "collectstatic" in text
    assert "compilemessages" in text
    assert "--constraint constraints.txt" in text
    copied = set(re.findall(r"^COPY (?:--from=\S+ )?(.+) \S+$", text.split("\nFROM ")[1], re.MULTILINE))
    names = {name for line in copied for name in line.split()}
    assert {"manage.py", "config", "kb", "retrieval", "templates", "constraints.txt"} <= names
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert all(f"!{name}" in ignored and (ROOT / name).exists() for name in names)


def test_the_extras_of_the_image_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    chosen = re.search(r"^ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    assert set(chosen.split(",")) <= set(extras)
    assert file_as_it_is()["x-zhiku"]["build"]["args"]["EXTRAS"] == f"${{ZHIKU_EXTRAS:-{chosen}}}"


def test_every_variable_that_compose_sets_is_one_that_somebody_reads(every):
    code = "".join(path.read_text() for folder in ("config", "kb") for path in (ROOT / folder).rglob("*.py"))
    elsewhere = {"HF_HOME"}  # read by the Hugging Face hub
    for name in OURS:
        for variable in every[name]["environment"]:
            assert variable in elsewhere or f'"{variable}"' in code or f"'{variable}'" in code, variable


def test_the_memory_of_an_index_build_fits_the_shared_memory_and_that_fits_the_server(every):
    def megabytes(size):
        return int(size.removesuffix("g")) * 1024

    build = int(every["worker"]["environment"]["INDEX_BUILD_MEMORY_MB"])
    shared, whole = (
        megabytes(every["postgres"]["shm_size"]),
        megabytes(every["postgres"]["deploy"]["resources"]["limits"]["memory"]),
    )
    assert build + 256 <= shared
    assert shared + 512 + 512 <= whole, "shared_buffers and the connections need room, too"
