"""Images of circles, squares and triangles on noise, and their boxes, for ultralytics."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

COUNTS = {"train": 400, "val": 100, "test": 200}
NAMES = ("circle", "square", "triangle")
_LARGEST_NUMBER = 4

Box = tuple[int, int, int, int]
"""Class, left, top and side of a shape."""


def write_shapes(folder: Path, side: int) -> Path:
    """Write the images and boxes of all splits, and return the description of the dataset."""
    rng = np.random.default_rng(0)
    for split, count in COUNTS.items():
        images, labels = folder / "images" / split, folder / "labels" / split
        for place in (images, labels):
            place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image, boxes = draw(rng, side)
            image.save(images / f"{number:04}.png")
            lines = (
                f"{kind} {(x + size / 2) / side} {(y + size / 2) / side} {size / side} "
                f"{size / side}\n"
                for kind, x, y, size in boxes
            )
            (labels / f"{number:04}.txt").write_text("".join(lines))
    splits = "".join(f"{split}: images/{split}\n" for split in COUNTS)
    names = "".join(f"  {kind}: {name}\n" for kind, name in enumerate(NAMES))
    description = folder / "shapes.yaml"
    description.write_text(f"path: {folder}\n{splits}names:\n{names}")
    return description


def draw(rng: np.random.Generator, side: int) -> tuple[Image.Image, list[Box]]:
    """Return one image with one to four shapes that hardly overlap."""
    noise = rng.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    resized = Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)
    image = resized.filter(ImageFilter.GaussianBlur(1))
    pen, boxes = ImageDraw.Draw(image), list[Box]()
    for _ in range(rng.integers(1, _LARGEST_NUMBER + 1)):
        kind, size = int(rng.integers(len(NAMES))), int(rng.integers(side // 8, side // 3))
        x, y = (int(value) for value in rng.integers(0, side - size, 2))
        if any(max(abs(x - a), abs(y - b)) < 0.7 * (size + other) for _, a, b, other in boxes):
            continue
        red, green, blue = (int(value) for value in rng.integers(0, 256, 3))
        color, at = (red, green, blue), (x, y, x + size, y + size)
        if kind == 0:
            pen.ellipse(at, fill=color)
        elif kind == 1:
            pen.rectangle(at, fill=color)
        else:
            pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=color)
        boxes.append((kind, x, y, size))
    return image, boxes
