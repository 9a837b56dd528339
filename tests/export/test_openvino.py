"""An exported ONNX file computes the same outputs in OpenVINO."""

from pathlib import Path

import pytest
import torch

from entrim import Plan, apply_plan
from entrim.export.formats import to_int8, to_onnx
from tests.pipeline.networks import Residual, images

openvino = pytest.importorskip("openvino", reason="needs openvino: pip install openvino")
pytest.importorskip("onnx", reason="needs onnx: pip install onnx")

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}
"""By default, processors with bfloat16 compute in it."""


def test_openvino_computes_the_outputs_of_a_pruned_network(tmp_path: Path) -> None:
    x = images(130, 3, 8, 8)
    plan = Plan({"conv1": range(5)})
    small = apply_plan(Residual(), plan, x[:2]).eval()
    made = to_onnx(small, x)
    made.write(tmp_path / "small.onnx")
    to_int8(made, x).write(tmp_path / "small.int8.onnx")
    with torch.no_grad():
        expected = small(x)
    errors = {}
    for name in ("small.onnx", "small.int8.onnx"):
        network = openvino.compile_model(tmp_path / name, "CPU", FLOAT32)
        for count in (1, len(x)):
            found = torch.from_numpy(network(x[:count].numpy())[0])
            errors[name] = float((found - expected[:count]).norm() / expected[:count].norm())
    assert errors["small.onnx"] < 1e-5
    assert errors["small.int8.onnx"] < 0.1
