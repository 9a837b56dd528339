"""Images from a folder, an array or tensors on disk, sized and normalised as told."""

import zipfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entrim.commands.amounts import numbers, sizes
from entrim.commands.models import read_tensors
from entrim.errors import CommandError, MissingExtraError

_MODES = {1: "L", 3: "RGB"}


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
    group.add_argument("--resize", type=sizes, metavar="H,W", help="resize image files to this")
    group.add_argument("--channels", type=int, choices=(1, 3), help="grey or colour image files")
    group.add_argument(
        "--mean", type=numbers, metavar="M,M,M", help="subtracted, channel by channel"
    )
    group.add_argument("--std", type=numbers, metavar="S,S,S", help="then divided by")
    group.add_argument(
        "--scale", type=float, default=255.0, help="bytes are divided by this before (255)"
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
        images = spread(_array(path, args.key), args.count)
    images = _normalised(images, args)
    _refuse_unreadable(model, images)
    return images


def images_in(path: Path, key: str | None) -> int:
    """Return how many images a file or folder holds."""
    return len(image_files(path)) if path.is_dir() else len(_array(path, key))


def spread(images: Any, count: int) -> Any:
    """Return at most `count` entries from everywhere: files are often sorted by class."""
    step = max(1.0, len(images) / count)
    places = [int(k * step) for k in range(min(count, len(images)))]
    return images[places] if isinstance(images, Tensor) else [images[k] for k in places]


def image_files(path: Path) -> list[Path]:
    """Return the image files in a folder and the folders inside it, in order of their names."""
    known = _pillow().registered_extensions()
    try:
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in known and f.is_file())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error}): mend its permissions") from error
    if not files:
        raise CommandError(
            f"{path} holds no image file: name a folder with PNG, JPEG or other files that Pillow "
            "reads"
        )
    return files


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading image files", "Pillow", "cli") from error
    return Image


def _folder(path: Path, args: Namespace, model: nn.Module) -> Tensor:
    Image = _pillow()
    files = image_files(path)
    mode = _MODES.get(args.channels or _reads(model)[1] or 3)
    if mode is None:
        raise CommandError(
            f"the network reads {_reads(model)[1]} channels, and image files have 1 or 3: hand "
            "over a .npy"
        )
    pixels = [_pixels(Image, file, mode, args.resize) for file in spread(files, args.count)]
    shapes = sorted({array.shape[-2:] for array in pixels})
    if len(shapes) > 1:
        raise CommandError(
            f"the images in {path} have {len(shapes)} sizes, such as {shapes[0]} and {shapes[-1]}: "
            "pass --resize H,W"
        )
    return torch.from_numpy(np.stack(pixels))


def _pixels(Image: Any, file: Path, mode: str, resize: tuple[int, ...] | None) -> np.ndarray:
    try:
        with Image.open(file) as opened:
            picture = opened.convert(mode)
        if resize is not None:
            high, wide = resize[0], resize[-1]
            picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError) as error:
        raise CommandError(f"{file} cannot be read ({error}): repair or remove it") from error
    array = np.asarray(picture, np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


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


def _normalised(images: Tensor, args: Namespace) -> Tensor:
    """Return floats; bytes are scaled first."""
    x = images.float() / args.scale if images.dtype == torch.uint8 else images.float()
    channels = x.shape[1]
    for name in ("mean", "std"):
        given = getattr(args, name)
        if given is not None and len(given) not in (1, channels):
            raise CommandError(
                f"--{name} has {len(given)} numbers and the images have {channels} channels: give "
                "1, or one a channel"
            )
    shape = (-1, *(1,) * (x.dim() - 2))
    if args.mean is not None:
        x = x - torch.tensor(args.mean).view(shape)
    if args.std is not None:
        if min(args.std) <= 0:
            raise CommandError("--std holds a number that is not above 0: give standard deviations")
        x = x / torch.tensor(args.std).view(shape)
    return x


def _reads(model: nn.Module) -> tuple[str, int | None]:
    """Return the first convolution, and the channels that it reads."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return name, module.in_channels
    return "", None


@torch.no_grad()
def _refuse_unreadable(model: nn.Module, images: Tensor) -> None:
    like = next(model.parameters(), images)
    try:
        model(images[:1].to(like.device, like.dtype))
    except Exception as error:
        shape, (name, channels) = tuple(images.shape[1:]), _reads(model)
        if channels is not None and channels != images.shape[1]:
            raise CommandError(
                f"the images have {images.shape[1]} channels and {name} reads {channels}: hand "
                f"over images of {channels} channels (image files: --channels {channels})"
            ) from error
        said = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {shape} ({said}): pass --resize, or images "
            "as it was trained with"
        ) from error
