"""An ONNX file as MODEL is pruned, distilled and written back."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import entrim
import entrim.onnx
from entrim.cli.model import read_model
from tests.cli.conftest import Command, assert_refused
from tests.onnx.files import export


def test_an_onnx_file_is_inspected_pruned_distilled_compared_and_reported(
    command: Command, workshop: Path
) -> None:
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    net = read_model(f"{workshop}/nets.py:fixed", None)
    export(net, x[:2], workshop / "net.onnx", dynamic_axes={"images": {0: "n"}})
    listed = command("inspect", "net.onnx", "--shape", ",".join(map(str, x.shape[1:])), "--json")
    assert list(json.loads(listed.out)["groups"].values()) == [8]
    how = ("--images", "x.npy", "--json", "--out")
    done = command("sparsify", "net.onnx", "--width", "0.5", *how, "small")
    assert done.code == 0, done.err
    assert json.loads(done.out)["onnx"] == "small/pruned.onnx"
    better = command("distill", "small", "--epochs", "1", *how, "better-onnx")
    assert better.code == 0, better.err
    assert "net.onnx" in command("compare", "small", "better-onnx").out
    (workshop / "small" / "report.html").unlink()
    assert command("report", "small").code == 0
    assert "net.onnx" in (workshop / "small" / "report.html").read_text()
    assert "In onnxruntime, the outputs of the ONNX file differ by" in (
        (workshop / "small" / "report.html").read_text()
    )
    for folder in ("small", "better-onnx"):
        record = json.loads((workshop / folder / "entrim.json").read_text())["record"]
        assert 0 <= record["proof"]["onnx"] < 1e-4
        small = entrim.load(entrim.onnx.load(workshop / "net.onnx"), workshop / folder)
        session = onnxruntime.InferenceSession(str(workshop / folder / "pruned.onnx"))
        found = torch.from_numpy(session.run(None, {"images": x.numpy()})[0])
        assert torch.allclose(found, small(x), atol=1e-5)


@pytest.mark.parametrize(("content", "part"), [(None, "there is no file"), (b"no", "truncated")])
def test_unreadable_files_are_refused(
    command: Command, workshop: Path, content: bytes | None, part: str
) -> None:
    if content is not None:
        (workshop / "odd.onnx").write_bytes(content)
    assert_refused(command("inspect", "odd.onnx", "--shape", "1,8,8"), part)
    words = ("--images", "x.npy", "--width", "0.5", "--out", "nothing")
    assert_refused(command("sparsify", "odd.onnx", *words), part)
    assert not (workshop / "nothing").exists()
