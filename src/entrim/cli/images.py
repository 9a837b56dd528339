"""Images from a folder, an array or tensors on disk, resized and normalized."""

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

from entrim.cli import units
from entrim.cli.model import read_tensors
from entrim.errors import CommandError, MissingExtraError
from entrim.graph.eager import call, copy_without_hooks

_DEEP = 65535
"""The largest value of 16 bits; 257 of them are one step of 8 bits."""


def image_files(path: Path) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted by name."""
    return _list_files(path)[0]


def read_files(path: Path, files: Sequence[Path], color: bool, resize: Any) -> np.ndarray:
    """Return (images, channels, height, width) between 0 and 255, as bytes or floats.

    The number of other files in the folder is printed once.
    """
    _print_skipped(path, len(_list_files(path)[1]))
    pixels = [_pixels(file, color, resize) for file in files]
    shapes = sorted({array.shape[-2:] for array in pixels})
    if len(shapes) > 1:
        raise CommandError(
            f"the images in {path} have {len(shapes)} sizes, such as {shapes[0]} and {shapes[-1]}: "
            "pass --resize H,W"
        )
    return np.stack(pixels)


def _list_files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the image files and the other files, by their suffixes."""
    known = _suffixes()
    try:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error}): correct its permissions") from error
    images = [file for file in files if file.suffix.lower() in known]
    if not images:
        raise CommandError(
            f"{path} contains no image files: name a folder with PNG, JPEG or other files that "
            "Pillow reads"
        )
    return images, [file for file in files if file.suffix.lower() not in known]


@cache
def _print_skipped(path: Path, number: int) -> None:
    if number:
        files = f"{number} file{'s' * (number != 1)}"
        print(f"{path}: {files} without an image suffix skipped", file=sys.stderr)


@cache
def _suffixes() -> frozenset[str]:
    """Return the suffixes that Pillow reads; it only writes or recognizes some others."""
    Image = _pillow()
    from PIL.ImageFile import StubImageFile

    known = Image.registered_extensions()
    opened = {kind for kind, (by, _) in Image.OPEN.items() if not _is_subclass(by, StubImageFile)}
    return frozenset(suffix for suffix, kind in known.items() if kind in opened | {"MPO"})  # a JPEG


def _is_subclass(found: Any, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading image files", "pillow", "cli") from error
    return Image


def _pixels(file: Path, color: bool, resize: Sequence[int] | None) -> np.ndarray:
    Image = _pillow()
    try:
        with Image.open(file) as opened:
            deep = opened.mode == "F" or opened.mode.startswith("I")
            picture = (
                _scale_16_bit(opened, file) if deep else opened.convert("RGB" if color else "L")
            )
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
    return np.repeat(array[None], 3 if color else 1, 0)


def _scale_16_bit(picture: Any, file: Path) -> Any:
    """Return a gray image of more than 8 bits as floats from 0 to 255."""
    values = np.asarray(picture)
    low, high = values.min(), values.max()
    if picture.mode == "F" or low < 0 or high > _DEEP:
        raise CommandError(
            f"{file} contains {'floats' if picture.mode == 'F' else 'numbers'} from {low:g} to "
            f"{high:g}, and the value of white is unknown: save the images as .npy, scaled as in "
            "training"
        )
    return _pillow().fromarray((values / (_DEEP / 255)).astype(np.float32))


_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}
"""Names of the dimensions after the channels, by their number."""


@dataclass(frozen=True, slots=True)
class _FirstConv:
    """The first convolution of a network: its name, input channels and input shape."""

    name: str = ""
    channels: int | None = None
    shape: str = "(N, C, H, W)"


def add_images(
    parser: ArgumentParser, *, required: bool = True, count: int = 500, moments: bool = False
) -> None:
    """Add the arguments that name images, or moments instead of them."""
    group = parser.add_argument_group("images")
    source = group.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "--images",
        metavar="PATH",
        help="a folder of image files, or an .npy, .npz or .pt of shape (N, C, H, W)",
    )
    if moments:
        source.add_argument(
            "--moments",
            metavar="FILE",
            help="second moments from entrim collect or merge, instead of images; for --width and "
            "penalties",
        )
    group.add_argument(
        "--count",
        type=int,
        default=count,
        help=f"maximum number of images, evenly spaced (default: {count})",
    )
    group.add_argument("--key", help="the entry of an .npz, or of a dict in a .pt")
    group.add_argument(
        "--resize", type=units.sizes, metavar="H,W", help="resize image files (not arrays)"
    )
    group.add_argument(
        "--channels", type=int, choices=(1, 3), help="read image files as gray or color"
    )
    group.add_argument(
        "--mean", type=units.numbers, metavar="M,M,M", help="mean to subtract, per channel"
    )
    group.add_argument(
        "--std", type=units.numbers, metavar="S,S,S", help="standard deviation to divide by"
    )
    group.add_argument(
        "--scale",
        type=float,
        default=255.0,
        help="divisor of integers, applied first; 16-bit image files are scaled to 8 bits before "
        "(default: 255)",
    )


def read_images(args: Namespace, model: nn.Module) -> Tensor:
    """Return the images as inputs of `model`."""
    path = Path(args.images)
    if args.count < 1:
        raise CommandError(f"--count is {args.count}: pass at least 1")
    if path.is_dir():
        images = _read_folder(path, args, model)
    elif not path.exists():
        raise CommandError(f"there is no {path}: name a folder of images, or a .npy, .npz or .pt")
    else:
        images = _to_float(sample_evenly(_read_array(path, args.key), args.count), path, args.scale)
    images = _normalize(images, args)
    _check_readable(model, images, files=path.is_dir())
    return images


def count_images(path: Path, key: str | None) -> int:
    """Return the number of images in a file or folder."""
    return len(image_files(path)) if path.is_dir() else len(_read_array(path, key))


def sample_evenly(images: Any, count: int) -> Any:
    """Return at most `count` evenly spaced entries: files are often sorted by class."""
    step = max(1.0, len(images) / count)
    places = [int(k * step) for k in range(min(count, len(images)))]
    return images[places] if isinstance(images, Tensor) else [images[k] for k in places]


def check_unused(args: Namespace, *paths: str | None) -> None:
    """Refuse options for image files if all images are arrays."""
    named = [Path(path) for path in paths if path is not None]
    if not named or not all(path.is_file() for path in named):
        return
    for name in ("resize", "channels"):
        if getattr(args, name) is not None:
            raise CommandError(
                f"--{name} is for folders of image files, and {named[0]} contains arrays: leave it "
                "out, or convert the arrays before saving them"
            )


def _read_folder(path: Path, args: Namespace, model: nn.Module) -> Tensor:
    channels = args.channels or _first_conv(model).channels or 3
    if channels not in (1, 3):
        raise CommandError(
            f"the network reads {channels} channels, and image files have 1 or 3: pass an .npy"
        )
    files = sample_evenly(image_files(path), args.count)
    return torch.from_numpy(read_files(path, files, channels == 3, args.resize)) / args.scale


def read_arrays(path: Path) -> Any:
    """Return the contents of an .npy, .npz or .pt: an array, a dict of arrays, or tensors."""
    if path.suffix in (".npy", ".npz"):
        try:
            found: Any = np.load(path, allow_pickle=False)
            if path.suffix == ".npz":
                found = {name: found[name] for name in found.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CommandError(
                f"{path} cannot be read ({error}): save a plain array with numpy.save"
            ) from error
    elif path.suffix in (".pt", ".pth"):
        found = read_tensors(path, "a tensor of images")
    else:
        raise CommandError(
            f"{path} is not an .npy, .npz or .pt: name one, or a folder of image files"
        )
    return found


def _read_array(path: Path, key: str | None) -> Tensor:
    found = entry_of(read_arrays(path), path, key, "--key")
    if isinstance(found, tuple | list) and found:
        found = found[0]
    try:
        images = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CommandError(
            f"{path} contains no array of numbers ({error}): save one array"
        ) from error
    if images.dim() < 2 or not len(images):
        raise CommandError(
            f"{path} has shape {tuple(images.shape)}: save (images, channels, height, width)"
        )
    return images


def entry_of(found: Any, path: Path, key: str | None, option: str) -> Any:
    """Return the entry `key` of a dict, or its only entry; anything else unchanged."""
    if not isinstance(found, dict):
        return found
    if key is None and len(found) == 1:
        return next(iter(found.values()))
    if key not in found:
        raise CommandError(
            f"{path} contains {', '.join(map(str, found)) or 'nothing'}: name one with {option}"
        )
    return found[key]


def _to_float(images: Tensor, path: Path, scale: float) -> Tensor:
    """Return floats: integers are scaled, booleans become 1 and 0."""
    if images.is_complex():
        raise CommandError(
            f"{path} contains complex numbers: save real ones, such as real and imaginary parts as "
            "channels"
        )
    real = images.is_floating_point() or images.dtype == torch.bool
    return images.float() if real else images.float() / scale


def _normalize(x: Tensor, args: Namespace) -> Tensor:
    """Return the images with `--mean` subtracted, divided by `--std`."""
    channels = x.shape[1]
    for name in ("mean", "std"):
        values = getattr(args, name)
        if values is not None and len(values) not in (1, channels):
            raise CommandError(
                f"--{name} has {len(values)} numbers and the images have {channels} channels, "
                f"their shape is {_format_shape(x)}: pass 1, or one per channel"
            )
    shape = (-1, *(1,) * (x.dim() - 2))
    if args.mean is not None:
        x = x - torch.tensor(args.mean).view(shape)
    if args.std is not None:
        if min(args.std) <= 0:
            raise CommandError(
                "--std contains a number that is not positive: pass standard deviations"
            )
        x = x / torch.tensor(args.std).view(shape)
    return x


def _first_conv(model: nn.Module) -> _FirstConv:
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            axes = _AXES[len(module.kernel_size)]
            return _FirstConv(name, module.in_channels, f"(N, {module.in_channels}, {axes})")
    return _FirstConv()


def _format_shape(images: Tensor) -> str:
    return f"(N, {', '.join(map(str, images.shape[1:]))})"


@torch.no_grad()
def _check_readable(model: nn.Module, images: Tensor, *, files: bool) -> None:
    like = next(model.parameters(), images)
    try:
        call(copy_without_hooks(model), images[:1].to(like.device, like.dtype))
    except Exception as error:
        shape, first = _format_shape(images), _first_conv(model)
        if not files and first.channels == len(images) and images.dim() == first.shape.count(","):
            raise CommandError(
                f"this is a single image: save a few hundred, {first.shape}"
            ) from error
        if first.channels is not None and first.channels != images.shape[1]:
            raise CommandError(
                f"the images have {images.shape[1]} channels, their shape is {shape}, and "
                f"{first.name} reads {first.channels}: "
                + (f"pass --channels {first.channels}" if files else f"save {first.shape}")
            ) from error
        reason = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {shape} ({reason}): "
            + ("pass --resize H,W" if files else f"save {first.shape}")
            + " as in its training"
        ) from error
