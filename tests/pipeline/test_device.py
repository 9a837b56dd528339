"""Another device than the CPU: every step runs there, and the results are those of the CPU.

The device is simulated, in a process of its own. It has neither the kernels nor the speed of CUDA.
"""

import json
import subprocess
import sys

import pytest

from tests import simulated_device

pytestmark = pytest.mark.skipif(
    not simulated_device.IS_SUPPORTED, reason="this PyTorch has no backends in Python"
)
RUNS = """
import copy, json, tempfile, warnings
import torch, entrim
from tests import simulated_device
from tests.pipeline.networks import images, residual

warnings.simplefilter("ignore")
model, x = residual(), images(100, 3, 6, 6)
simulated_device.enable()
there = copy.deepcopy(model).to("simulated")
half = {"budget": entrim.Budget(macs=0.6), "example_inputs": x[:2]}
runs = {
    "budget": half,
    "penalty": entrim.paper_preset(-1e-2, 1e-2),
}
found = {"mixed": ""}
try:
    x[:2] + x[:2].to("simulated")
except RuntimeError as error:
    found["mixed"] = str(error)
for name, options in runs.items():
    here, other = (entrim.sparsify(net, x, **options) for net in (model, there))
    if name == "budget":
        training = entrim.Distillation(epochs=1, batch_size=45)
        here, other = (entrim.distill(one, None, training) for one in (here, other))
    with tempfile.TemporaryDirectory() as folder:
        other.save(folder)
        loaded = entrim.load(there, folder)
    devices = {str(tensor.device) for tensor in loaded.state_dict().values()}
    outputs = loaded(x.to("simulated")).cpu()
    change = (outputs - here.model(x)).abs().max() / outputs.abs().max()
    same = here.plan.kept == other.plan.kept
    found[name] = [same, sorted(devices), change.item(), other.record.distilled is not None]
print(json.dumps(found))
"""


def test_every_step_runs_on_the_device_of_the_network() -> None:
    done = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "same device" in found.pop("mixed")  # the device is not the CPU
    assert list(found) == ["budget", "penalty"]
    for name, (same, devices, change, distilled) in found.items():
        assert same, name
        assert devices == ["simulated:0"], name
        assert change < 1e-5, (name, change)
        assert distilled == (name == "budget")
