"""A pruned detector goes on working inside of ultralytics."""

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import entrim
from entrim.errors import BadImagesError, BadSettingError, MissingPackageError, SaveError
from entrim.integrations import ultralytics as integration
from experiments.operators import define_missing_operators

installed = pytest.mark.skipif(
    find_spec("ultralytics") is None, reason="needs ultralytics: install it with torchvision"
)
pytestmark = pytest.mark.filterwarnings("ignore")
SIDE, HEAD = 64, 22
WIDTHS = entrim.Widths(0.5)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with eight images of squares, and their boxes."""
    folder = tmp_path_factory.mktemp("squares")
    rng = np.random.default_rng(0)
    for part in ("images", "labels"):
        (folder / part).mkdir()
    for number in range(8):
        pixels = rng.integers(0, 80, (SIDE, SIDE, 3), dtype=np.uint8)
        pixels[16:40, 20:48] = 200
        Image.fromarray(pixels).save(folder / f"images/{number}.png")
        (folder / f"labels/{number}.txt").write_text("0 0.53 0.44 0.44 0.38\n")
    for name, classes in (("one", ["square"]), ("two", ["square", "circle"])):
        names = "".join(f"  {k}: {kind}\n" for k, kind in enumerate(classes))
        where = f"path: {folder}\ntrain: images\nval: images\nnames:\n{names}"
        (folder / f"{name}.yaml").write_text(where)
    before = Path.cwd()
    os.chdir(folder)
    os.environ |= {"YOLO_CONFIG_DIR": str(folder / "settings"), "YOLO_OFFLINE": "true"}
    (folder / "settings").mkdir()
    define_missing_operators()
    yield folder
    os.chdir(before)


def narrow(name: str = "yolov8") -> Any:
    """Return a narrow detector of one class with random weights."""
    ultralytics = pytest.importorskip("ultralytics")
    tasks = pytest.importorskip("ultralytics.nn.tasks")
    description = tasks.yaml_model_load(f"{name}n.yaml")
    description |= {"scales": {"n": [0.33, 0.125, 512]}, "nc": 1}
    del description["scale"], description["yaml_file"]
    ultralytics.utils.YAML.save(f"narrow-{name}.yaml", description)
    torch.manual_seed(0)
    return ultralytics.YOLO(f"narrow-{name}.yaml", verbose=False)


@pytest.fixture(scope="module")
def result(work: Path) -> entrim.SparsifyResult:
    images = integration.ImageFiles(work / "images", SIDE)
    return integration.sparsify_yolo(narrow(), [*images] * 2, WIDTHS, callbacks=())


@pytest.fixture(scope="module")
def checkpoint(work: Path, result: entrim.SparsifyResult) -> Path:
    integration.save_yolo(result.model, work / "small.pt")
    return work / "small.pt"


def load(file: Any) -> Any:
    """Return `YOLO(file)`."""
    return pytest.importorskip("ultralytics").YOLO(file)


def sizes(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@installed
def test_a_checkpoint_predicts_what_the_pruned_network_predicts(
    result: entrim.SparsifyResult, checkpoint: Path
) -> None:
    loaded = load(checkpoint)
    assert type(loaded.model) is type(result.original)
    assert result.record.after.params < 0.7 * result.record.before.params
    assert sizes(loaded.model) == sizes(result.model)
    images = torch.rand(2, 3, SIDE, SIDE)
    with torch.no_grad():
        pruned = copy.deepcopy(result.model).half().float().eval()
        assert torch.equal(loaded.model.eval()(images)[0], pruned(images)[0])
    assert len(loaded.predict("images", imgsz=SIDE, verbose=False)) == 8


@installed
def test_the_head_does_not_change(result: entrim.SparsifyResult) -> None:
    before, after = sizes(result.original), sizes(result.model)
    head = [name for name in before if name.startswith(f"model.{HEAD}.")]
    assert head
    assert {name: before[name] for name in head} == {name: after[name] for name in head}


@installed
def test_blocks_split_their_channels_in_halves(
    result: entrim.SparsifyResult, tmp_path: Path
) -> None:
    result.save(tmp_path / "saved")
    images = torch.rand(2, 3, SIDE, SIDE)
    for model in (result.model, entrim.load(result.original, tmp_path / "saved")):
        model.eval()
        blocks: list[Any] = [m for m in model.modules() if hasattr(m, "forward_split")]
        expected = model(images)[0]
        assert len(blocks) == 8
        for block in blocks:  # as on Edge TPU, TensorFlow Lite and others
            block.forward = block.forward_split
        assert torch.equal(model(images)[0], expected)


@installed
def test_a_checkpoint_is_validated_and_exported(checkpoint: Path, work: Path) -> None:
    settings = {"imgsz": SIDE, "device": "cpu", "verbose": False}
    found = load(checkpoint).val(data="one.yaml", workers=0, plots=False, **settings)
    assert 0 <= found.box.map <= 1
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = load(checkpoint).export(format="onnx", imgsz=SIDE, simplify=False, device="cpu")
    images = torch.rand(1, 3, SIDE, SIDE)
    (outputs,) = runtime.InferenceSession(file).run(None, {"images": images.numpy()})
    with torch.no_grad():
        expected = load(checkpoint).model.eval()(images)[0]
    assert torch.allclose(torch.from_numpy(outputs), expected, rtol=1e-3, atol=1e-2)


@installed
@pytest.mark.parametrize("data", ["one", "two"])
def test_training_keeps_the_widths(checkpoint: Path, data: str) -> None:
    before = sizes(load(checkpoint).model)
    yolo = load(checkpoint)
    trained = train(yolo, data, trainer=integration.PrunedTrainer)
    after = sizes(trained.model)
    assert {name for name in before if before[name] != after[name]} == (
        set()
        if data == "one"
        else {f"model.{HEAD}.cv3.{k}.2.{leaf}" for k in range(3) for leaf in ("weight", "bias")}
    )
    again = load(trained.trainer.best)
    assert sizes(again.model) == after
    assert list(again.names.values()) == ["square", "circle"][: len(again.names)]
    integration.save_yolo(trained.model, "again.pt")
    assert sizes(load("again.pt").model) == after


def train(yolo: Any, data: str, **options: Any) -> Any:
    yolo.train(
        data=f"{data}.yaml",
        epochs=1,
        imgsz=SIDE,
        batch=4,
        workers=0,
        device="cpu",
        plots=False,
        verbose=False,
        **options,
    )
    return yolo


@installed
def test_a_trainer_that_would_restore_the_widths_is_refused(checkpoint: Path) -> None:
    with pytest.raises(KeyError, match=r"pruned.*train it with .*PrunedTrainer"):
        train(load(checkpoint), "one")
    with pytest.raises(BadSettingError, match="leave pretrained=False out"):
        train(load(checkpoint), "one", trainer=integration.PrunedTrainer, pretrained=False)


@installed
def test_a_checkpoint_is_loaded_without_entrim(checkpoint: Path) -> None:
    program = (
        "import sys; sys.modules['entrim'] = None\n"
        "import torch\n"
        f"found = torch.load({str(checkpoint)!r}, weights_only=False)\n"
        "print(sum(p.numel() for p in found['model'].parameters()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    found = torch.load(checkpoint, weights_only=False)
    assert done.stdout.strip() == str(sum(p.numel() for p in found["model"].parameters()))


@installed
def test_other_objects_and_files_are_refused(
    result: entrim.SparsifyResult, work: Path, tmp_path: Path
) -> None:
    yolo = narrow()
    with pytest.raises(SaveError, match=r"was not pruned by sparsify_yolo: pass result\.model"):
        integration.save_yolo(yolo.model, tmp_path / "small.pt")
    with pytest.raises(SaveError, match=r"name a file that ends with \.pt"):
        integration.save_yolo(result.model, tmp_path / "small.onnx")
    images = integration.ImageFiles(work / "images", SIDE)
    with pytest.raises(BadSettingError, match="a detector is required, got Linear"):
        integration.sparsify_yolo(torch.nn.Linear(2, 2), images)
    yolo.model.fuse(verbose=False)
    with pytest.raises(BadSettingError, match="were merged, as predict and val do"):
        integration.sparsify_yolo(yolo, images)
    with pytest.raises(BadImagesError, match="contains no images"):
        integration.ImageFiles(tmp_path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ultralytics", "ultralytics.nn.tasks", "ultralytics.data.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"needs ultralytics .*: pip install ultralytics"):
        integration.sparsify_yolo("yolov8n.pt", torch.rand(20, 3, 8, 8))
    with pytest.raises(MissingPackageError, match="needs ultralytics"):
        integration.ImageFiles("images")
