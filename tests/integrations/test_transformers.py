"""A pruned network of transformers is loaded by `from_pretrained`, and uploaded."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import entrim
from entrim.errors import MissingPackageError, SaveError
from entrim.integrations.transformers import push_to_hub, save_transformers
from tests.pipeline.networks import images

pytestmark = pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
SIZES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_labels": 3}
ADDRESS = "https://huggingface.co/someone/small"
IMAGES = images(60, 3, 32, 32)
LOAD = """
import sys
sys.modules["entrim"] = None
import torch, transformers
model = transformers.AutoModelForImageClassification.from_pretrained(
    sys.argv[1], trust_remote_code=True
)
with torch.no_grad():
    torch.save(model(torch.load(sys.argv[2])).logits, sys.argv[3])
"""


@pytest.fixture(scope="module")
def result() -> entrim.SparsifyResult:
    torch.manual_seed(0)
    settings = transformers.ResNetConfig(**SIZES, layer_type="basic")
    model = transformers.ResNetForImageClassification(settings).eval()
    model.config._name_or_path = "someone/resnet"
    return entrim.sparsify(model, IMAGES, entrim.Widths(0.5), callbacks=())


@pytest.fixture
def folder(result: entrim.SparsifyResult, tmp_path: Path) -> Path:
    save_transformers(result.model, tmp_path / "small", record=result.record)
    return tmp_path / "small"


def test_from_pretrained_loads_the_folder_without_entrim(
    result: entrim.SparsifyResult, folder: Path, tmp_path: Path
) -> None:
    torch.save(IMAGES, tmp_path / "images.pt")
    names = [str(folder), str(tmp_path / "images.pt"), str(tmp_path / "logits.pt")]
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *names], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits.pt"), result.model(IMAGES).logits)


def test_the_model_card_has_the_figures_of_the_record(
    result: entrim.SparsifyResult, folder: Path
) -> None:
    card, record = (folder / "README.md").read_text(), result.record
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: image-classification\n")
    assert "base_model: someone/resnet\n" in card
    assert record.holdout is not None
    assert record.holdout.agreement is not None
    agreement = f"| agreement | {record.holdout.agreement.value:.1%} |"
    assert agreement in card
    assert re.search(r"\| parameters \| [\d.]+ k \| [\d.]+ k \|", card)
    assert "AutoModelForImageClassification.from_pretrained(" in card


class Hub(BaseHTTPRequestHandler):
    """The requests of an upload; small files are part of the commit."""

    commits: list[list[dict[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/api/repos/create":
            answer: Any = {"url": ADDRESS, "name": "someone/small"}
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            kinds = [{"path": f["path"], "uploadMode": "regular"} for f in files]
            answer = {"files": [{**kind, "shouldIgnore": False} for kind in kinds]}
        elif "/commit/" in self.path:
            self.commits.append([json.loads(line) for line in body.splitlines()])
            answer = {"commitUrl": f"{ADDRESS}/commit/0", "commitOid": "0" * 40}
        else:
            answer = {}
        self.answer(answer)

    def do_GET(self) -> None:
        self.answer({"sha": "0" * 40, "id": "someone/small", "siblings": []})

    def answer(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.commits = []
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    library: Any = pytest.importorskip("huggingface_hub")
    address = f"http://127.0.0.1:{server.server_port}"
    real = library.HfApi
    monkeypatch.setattr(library, "HfApi", lambda token: real(endpoint=address, token=token))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield Hub
    server.shutdown()
    server.server_close()


@pytest.mark.filterwarnings("ignore")  # of the client of the Hub
def test_a_folder_is_uploaded(folder: Path, hub: type[Hub]) -> None:
    assert push_to_hub(folder, "someone/small", token="hf_x").endswith("someone/small")
    (commit,) = hub.commits
    sent = {line["value"]["path"] for line in commit if line["key"] == "file"}
    assert sent == {file.name for file in folder.iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "load_model.py"} <= sent


@pytest.mark.filterwarnings("ignore")
def test_an_upload_that_fails_names_the_remedy(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"was not uploaded .*: check the name, the connection"):
        push_to_hub(folder, "not a name/", token="hf_x")
    with pytest.raises(SaveError, match="was not written by save_transformers"):
        push_to_hub(tmp_path, "someone/small")


def test_other_networks_and_folders_are_refused(
    result: entrim.SparsifyResult, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SaveError, match="is not an empty folder"):
        save_transformers(result.model, folder)
    with pytest.raises(SaveError, match=r"is not a network of transformers .* pass result\.model"):
        save_transformers(nn.Linear(2, 2), tmp_path / "other")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match="save_transformers needs transformers"):
        save_transformers(result.model, tmp_path / "other")
