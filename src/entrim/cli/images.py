"""Images from a folder, an array or tensors on disk, sized and normalised as told."""

import sys
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entrim.cli.model import read_tensors
from entrim.cli.units import numbers, sizes
from entrim.errors import CommandError, MissingExtraError

_DEEP = 65535
"""The largest value of 16 bits; 257 of them are one of a byte."""


def image_files(path: Path) -> list[Path]:
    """Return the image files in a folder and the folders inside it, in order of their names."""
    return _sorted_out(path)[0]


def read_files(path: Path, files: Sequence[Path], colour: bool, resize: Any) -> np.ndarray:
    """Return (images, channels, height, width) between 0 and 255, bytes or finer.

    How many of the folder's files are none of images is told once.
    """
    _tell_left_out(path, len(_sorted_out(path)[1]))
    pixels = [_pixels(file, colour, resize) for file in files]
    shapes = sorted({array.shape[-2:] for array in pixels})
    if len(shapes) > 1:
        raise CommandError(
            f"the images in {path} have {len(shapes)} sizes, such as {shapes[0]} and {shapes[-1]}: "
            "pass --resize H,W"
        )
    return np.stack(pixels)


def _sorted_out(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the image files and the others, told apart by their suffixes."""
    known = _suffixes()
    try:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error}): mend its permissions") from error
    images = [file for file in files if file.suffix.lower() in known]
    if not images:
        raise CommandError(
            f"{path} holds no image file: name a folder with PNG, JPEG or other files that Pillow "
            "reads"
        )
    return images, [file for file in files if file.suffix.lower() not in known]


@cache
def _tell_left_out(path: Path, number: int) -> None:
    if number:
        files = f"{number} file{'s' * (number != 1)}"
        print(f"{path}: {files} without the suffix of an image left out", file=sys.stderr)


@cache
def _suffixes() -> frozenset[str]:
    """Return the suffixes of images that Pillow reads; some it writes only, or only recognises."""
    Image = _pillow()
    from PIL.ImageFile import StubImageFile

    known = Image.registered_extensions()
    opened = {kind for kind, (by, _) in Image.OPEN.items() if not _is(by, StubImageFile)}
    return frozenset(suffix for suffix, kind in known.items() if kind in opened | {"MPO"})  # a JPEG


def _is(found: Any, suffix: type) -> bool:
    return isinstance(found, type) and issubclass(found, suffix)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading image files", "pillow", "cli") from error
    return Image


def _pixels(file: Path, colour: bool, resize: Sequence[int] | None) -> np.ndarray:
    Image = _pillow()
    try:
        with Image.open(file) as opened:
            deep = opened.mode == "F" or opened.mode.startswith("I")
            picture = _levelled(opened, file) if deep else opened.convert("RGB" if colour else "L")
        if resize is not None:
            high, wide = resize[0], resize[-1]
            picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    except CommandError:
        raise
    except (OSError, ValueError, SyntaxError) as error:
        raise CommandError(f"{file} cannot be read ({error}): repair or remove it") from error
    array = np.asarray(picture)
    if array.ndim == 3:
        return np.ascontiguousarray(array.transpose(2, 0, 1))
    return np.repeat(array[None], 3 if colour else 1, 0)


def _levelled(picture: Any, file: Path) -> Any:
    """Return a grey picture of more than 8 bits as floats from 0 to 255, not clipped to bytes."""
    values = np.asarray(picture)
    low, high = values.min(), values.max()
    if picture.mode == "F" or low < 0 or high > _DEEP:
        raise CommandError(
            f"{file} holds {'floats' if picture.mode == 'F' else 'numbers'} from {low:g} to "
            f"{high:g}, and nothing tells which of them is white: save the images as .npy, scaled "
            "as in training"
        )
    return _pillow().fromarray((values / (_DEEP / 255)).astype(np.float32))


_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}
"""What the dimensions behind the channels are called, by their number."""


@dataclass(frozen=True, slots=True)
class _ImageReader:
    """The first convolution of a network: its name, the channels and the shape that it reads."""

    name: str = ""
    channels: int | None = None
    shape: str = "(N, C, H, W)"


def add_images(parser: ArgumentParser, *, required: bool = True, count: int = 500) -> None:
    """Add the arguments that name images."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--images",
        required=required,
        metavar="PATH",
        help="a folder of image files, or .npy, .npz or .pt (images, channels, height, width)",
    )
    group.add_argument(
        "--count", type=int, default=count, help=f"at most so many ({count}), spread evenly"
    )
    group.add_argument("--key", help="the entry of an .npz or of a dict in a .pt")
    group.add_argument(
        "--resize", type=sizes, metavar="H,W", help="resize image files to this, not arrays"
    )
    group.add_argument("--channels", type=int, choices=(1, 3), help="image files as grey or colour")
    group.add_argument(
        "--mean", type=numbers, metavar="M,M,M", help="subtracted, channel by channel"
    )
    group.add_argument("--std", type=numbers, metavar="S,S,S", help="then divided by")
    group.add_argument(
        "--scale",
        type=float,
        default=255.0,
        help="whole numbers are divided by this before (255); 16 bits of an image file count as 8",
    )


def read_pictures(args: Namespace, model: nn.Module) -> Tensor:
    """Return the images as `model` wants them; what cannot be used is refused by name."""
    path = Path(args.images)
    if args.count < 1:
        raise CommandError(f"--count is {args.count}: ask for at least 1 image")
    if path.is_dir():
        images = _folder(path, args, model)
    elif not path.exists():
        raise CommandError(f"there is no {path}: name a folder of images, or a .npy, .npz or .pt")
    else:
        images = _floats(sample_evenly(_array(path, args.key), args.count), path, args.scale)
    images = _normalised(images, args)
    _check_readable(model, images, files=path.is_dir())
    return images


def images_in(path: Path, key: str | None) -> int:
    """Return how many images a file or folder holds."""
    return len(image_files(path)) if path.is_dir() else len(_array(path, key))


def sample_evenly(images: Any, count: int) -> Any:
    """Return at most `count` entries from everywhere: files are often sorted by class."""
    step = max(1.0, len(images) / count)
    places = [int(k * step) for k in range(min(count, len(images)))]
    return images[places] if isinstance(images, Tensor) else [images[k] for k in places]


def check_idle(asked: Namespace, *paths: str | None) -> None:
    """Refuse options for image files that were given where all images lie in arrays."""
    named = [Path(path) for path in paths if path is not None]
    if not named or not all(path.is_file() for path in named):
        return
    for name in ("resize", "channels"):
        if getattr(asked, name) is not None:
            raise CommandError(
                f"--{name} is for folders of image files, and {named[0]} holds arrays: leave it "
                "out, or change the arrays before they are saved"
            )


def _folder(path: Path, args: Namespace, model: nn.Module) -> Tensor:
    channels = args.channels or _reads(model).channels or 3
    if channels not in (1, 3):
        raise CommandError(
            f"the network reads {channels} channels, and image files have 1 or 3: hand over a .npy"
        )
    files = sample_evenly(image_files(path), args.count)
    return torch.from_numpy(read_files(path, files, channels == 3, args.resize)) / args.scale


def held_in(path: Path) -> Any:
    """Return what an .npy, .npz or .pt holds: an array, a dict of arrays, tensors."""
    if path.suffix in (".npy", ".npz"):
        try:
            held: Any = np.load(path, allow_pickle=False)
            if path.suffix == ".npz":
                held = {name: held[name] for name in held.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CommandError(
                f"{path} cannot be read ({error}): save a plain array with numpy.save"
            ) from error
    elif path.suffix in (".pt", ".pth"):
        held = read_tensors(path, "a tensor of images")
    else:
        raise CommandError(f"{path} is no .npy, .npz or .pt: name one, or a folder of image files")
    return held


def _array(path: Path, key: str | None) -> Tensor:
    held = entry_of(held_in(path), path, key, "--key")
    if isinstance(held, tuple | list) and held:
        held = held[0]
    try:
        images = torch.as_tensor(held)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CommandError(f"{path} holds no array of numbers ({error}): save one array") from error
    if images.dim() < 2 or not len(images):
        raise CommandError(
            f"{path} has shape {tuple(images.shape)}: save (images, channels, height, width)"
        )
    return images


def entry_of(held: Any, path: Path, key: str | None, option: str) -> Any:
    """Return the entry of a dict that `key` names, or its only one; anything else as it is."""
    if not isinstance(held, dict):
        return held
    if key is None and len(held) == 1:
        return next(iter(held.values()))
    if key not in held:
        raise CommandError(
            f"{path} holds {', '.join(map(str, held)) or 'nothing'}: name one with {option}"
        )
    return held[key]


def _floats(images: Tensor, path: Path, scale: float) -> Tensor:
    """Return floats: whole numbers are scaled, what is true or false is 1 or 0."""
    if images.is_complex():
        raise CommandError(
            f"{path} holds complex numbers: save real ones, such as their real and imaginary parts "
            "as channels"
        )
    real = images.is_floating_point() or images.dtype == torch.bool
    return images.float() if real else images.float() / scale


def _normalised(x: Tensor, args: Namespace) -> Tensor:
    """Return the images with mean and deviation as told."""
    channels = x.shape[1]
    for name in ("mean", "std"):
        given = getattr(args, name)
        if given is not None and len(given) not in (1, channels):
            raise CommandError(
                f"--{name} has {len(given)} numbers and the images have {channels} channels, their "
                f"shape is {_shown(x)}: give 1, or one a channel"
            )
    shape = (-1, *(1,) * (x.dim() - 2))
    if args.mean is not None:
        x = x - torch.tensor(args.mean).view(shape)
    if args.std is not None:
        if min(args.std) <= 0:
            raise CommandError("--std holds a number that is not above 0: give standard deviations")
        x = x / torch.tensor(args.std).view(shape)
    return x


def _reads(model: nn.Module) -> _ImageReader:
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            axes = _AXES[len(module.kernel_size)]
            return _ImageReader(name, module.in_channels, f"(N, {module.in_channels}, {axes})")
    return _ImageReader()


def _shown(images: Tensor) -> str:
    return f"(N, {', '.join(map(str, images.shape[1:]))})"


@torch.no_grad()
def _check_readable(model: nn.Module, images: Tensor, *, files: bool) -> None:
    like = next(model.parameters(), images)
    try:
        model(images[:1].to(like.device, like.dtype))
    except Exception as error:
        shape, reader = _shown(images), _reads(model)
        if reader.channels is not None and reader.channels != images.shape[1]:
            raise CommandError(
                f"the images have {images.shape[1]} channels, their shape is {shape}, and "
                f"{reader.name} reads {reader.channels}: "
                + (f"pass --channels {reader.channels}" if files else f"save {reader.shape}")
            ) from error
        said = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {shape} ({said}): "
            + ("pass --resize H,W" if files else f"save {reader.shape}")
            + " as it was trained with"
        ) from error
