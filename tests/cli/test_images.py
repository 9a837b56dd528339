"""Images from folders, arrays and tensors."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entrim.cli.images import read_images
from entrim.errors import CommandError
from tests.cli.conftest import Command, assert_refused, trained_network

SPARSIFY = ("sparsify", "nets.py:small", "--out", "never")
COLOR = torch.nn.Conv2d(3, 2, 3)


@pytest.fixture
def image() -> Any:
    """Return the module of Pillow that creates images."""
    return pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")


def make_args(images: Path, **options: Any) -> Namespace:
    """Return the arguments of a command without any option."""
    usual: dict[str, Any] = dict.fromkeys(("key", "resize", "channels", "mean", "std"))
    return Namespace(images=str(images), **{**usual, "count": 500, "scale": 255.0, **options})


def test_image_files_are_converted_for_the_network(tmp_path: Path, image: Any) -> None:
    (tmp_path / "inner").mkdir()
    pixels = np.random.default_rng(1).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    for k, picture in enumerate(pixels):
        image.fromarray(picture).save(tmp_path / "inner" / f"{k}.png")
    args = make_args(tmp_path, count=3, mean=(0.5,), std=(0.25,))
    found = read_images(args, COLOR)
    wanted = (torch.from_numpy(pixels[::2]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    torch.testing.assert_close(found, wanted)
    assert read_images(args, trained_network()).shape == (3, 1, 8, 8)
    args.resize = (4, 6)
    assert read_images(args, COLOR).shape == (3, 3, 4, 6)


@pytest.mark.parametrize(
    ("suffix", "dtype"), [("png", np.uint16), ("tif", np.uint16), ("tif", np.int32)]
)
def test_16_bit_images_are_scaled_to_8_bits(
    tmp_path: Path, image: Any, suffix: str, dtype: type
) -> None:
    deep = np.random.default_rng(2).integers(0, 65536, (3, 8, 8)).astype(dtype)
    deep[0, 0, :2] = 0, 65535
    for k, picture in enumerate(deep):
        image.fromarray(picture).save(tmp_path / f"{k}.{suffix}")
    grey = read_images(make_args(tmp_path), trained_network())
    wanted = torch.from_numpy(deep.astype(np.float32)).unsqueeze(1) / 65535
    torch.testing.assert_close(grey, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(read_images(make_args(tmp_path), COLOR), wanted.expand(3, 3, 8, 8))
    assert 0 < read_images(make_args(tmp_path, resize=(4, 4)), trained_network()).mean() < 1
    image.fromarray((deep[0] // 257).astype(np.uint8)).save(tmp_path / f"3.{suffix}")  # 8 bits
    last = read_images(make_args(tmp_path), trained_network())[-1]
    torch.testing.assert_close(last, wanted[0], atol=1 / 255, rtol=0)


@pytest.mark.parametrize(
    ("pixels", "what"),
    [
        (np.full((8, 8), 0.5, np.float32), "floats from 0.5 to 0.5"),
        (np.full((8, 8), 70_000, np.int32), "numbers from 70000 to 70000"),
        (np.full((8, 8), -1, np.int32), "numbers from -1 to -1"),
    ],
)
def test_images_of_unknown_range_are_refused(
    command: Command, tmp_path: Path, image: Any, pixels: np.ndarray, what: str
) -> None:
    image.fromarray(pixels).save(tmp_path / "a.tif")
    done = command(*SPARSIFY, "--images", tmp_path)
    assert_refused(done, "a.tif contains", what, "save the images as .npy")


def test_other_files_are_skipped_and_counted_once(
    command: Command, workshop: Path, image: Any
) -> None:
    place = workshop / "mixed"
    place.mkdir(exist_ok=True)
    random = np.random.default_rng(3)
    for k in range(40):
        pixels = random.integers(0, 256, (8, 8), dtype=np.uint8)
        image.fromarray(pixels).save(place / f"{k:02}.png")
    for name in ("report.pdf", "notes.txt", "data.h5", ".DS_Store"):
        (place / name).write_text("no image")
    scored = ("--metric", "nets.py:more", "--trials", "1", "--pick", "1", "--out", "mixed-found")
    labels_file = (
        "--test-images",
        "mixed",
        "--labels",
        "forty.npy",
        "--trials",
        "1",
        "--pick",
        "1",
    )
    np.save(workshop / "forty.npy", np.zeros(40, int))
    for more in (scored, (*labels_file, "--out", "mixed-labels_file")):
        done = command("search", "nets.py:small", "--images", "mixed", *more)
        assert done.code == 0, done.err
        told = "mixed: 4 files without an image suffix skipped"
        assert done.err.splitlines().count(told) == 1


@pytest.mark.parametrize("name", ["x.npz", "x.pt", "pair.pt", "named.pt"])
def test_arrays_and_tensors_are_read_alike(workshop: Path, name: str) -> None:
    x = np.load(workshop / "x.npy")
    images, labels = torch.from_numpy(x), torch.zeros(len(x))
    np.savez(workshop / "x.npz", x=x)
    torch.save(images, workshop / "x.pt")
    torch.save((images, labels), workshop / "pair.pt")
    torch.save({"images": images, "labels": labels}, workshop / "named.pt")
    args = make_args(workshop / name, key="images" if name == "named.pt" else None)
    assert torch.equal(read_images(args, trained_network()), images)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64"])
def test_integers_of_any_type_are_scaled(tmp_path: Path, dtype: str) -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (5, 1, 8, 8))
    np.save(tmp_path / "x.npy", pixels.astype(dtype))
    found = read_images(make_args(tmp_path / "x.npy"), trained_network())
    torch.testing.assert_close(found, torch.from_numpy(pixels).float() / 255)
    found = read_images(make_args(tmp_path / "x.npy", scale=100.0), trained_network())
    torch.testing.assert_close(found, torch.from_numpy(pixels).float() / 100)


def test_booleans_are_converted_and_complex_numbers_refused(tmp_path: Path) -> None:
    mask = np.random.default_rng(5).integers(0, 2, (5, 1, 8, 8)).astype(bool)
    np.save(tmp_path / "mask.npy", mask)
    found = read_images(make_args(tmp_path / "mask.npy"), trained_network())
    assert torch.equal(found, torch.from_numpy(mask).float())
    np.save(tmp_path / "waves.npy", mask.astype(np.complex64))
    with pytest.raises(CommandError, match=r"waves\.npy contains complex numbers: save real ones"):
        read_images(make_args(tmp_path / "waves.npy"), trained_network())


@pytest.mark.parametrize(("option", "value"), [("--resize", "4,4"), ("--channels", "3")])
def test_options_of_image_files_are_refused_for_arrays(
    command: Command, workshop: Path, pruned: Path, option: str, value: str
) -> None:
    sentence = f"{option} is for folders of image files, and x.npy contains arrays: leave it out"
    metric = ("--metric", "nets.py:more", "--out", "never")
    for words in (
        (*SPARSIFY, "--images", "x.npy"),
        ("search", "nets.py:small", "--images", "x.npy", *metric),
        ("distill", "pruned", "--out", "never"),
        ("export", "pruned", "--torchexport", "never.pt2"),
    ):
        done = command(*words, option, value)
        assert_refused(done, sentence, before="(model|images): ")


def test_arrays_are_accepted_after_a_run_on_image_files(
    command: Command, workshop: Path, image: Any
) -> None:
    (workshop / "large").mkdir(exist_ok=True)
    for k, pixels in enumerate(np.random.default_rng(6).integers(0, 256, (40, 16, 16))):
        image.fromarray(pixels.astype(np.uint8)).save(workshop / "large" / f"{k}.png")
    words = ("--weights", "w.pt", "--images", "large", "--resize", "8,8", "--width", "0.5")
    done = command("sparsify", "nets.py:small", *words, "--out", "resized")
    assert done.code == 0, done.err
    more = ("--images", "x.npy", "--epochs", "1", "--out", "resized-better")
    done = command("distill", "resized", *more)
    assert done.code == 0, done.err


@pytest.mark.parametrize("shape", [(60, 8, 8), (60, 8, 8, 1), (60, 8, 8, 3)])
def test_expected_and_found_shapes_are_reported(
    command: Command, workshop: Path, shape: tuple[int, ...]
) -> None:
    np.save(workshop / "shaped.npy", np.zeros(shape, np.float32))
    there = f"(N, {', '.join(map(str, shape[1:]))})"
    words = (*SPARSIFY, "--images", "shaped.npy")
    assert_refused(command(*words), "have 8 channels", there, "0 reads 1: save (N, 1, H, W)")
    assert_refused(command(*words, "--mean", "0,0,0"), "have 8 channels", there)


def test_single_image_is_refused(command: Command, workshop: Path) -> None:
    np.save(workshop / "single.npy", np.zeros((1, 8, 8), np.float32))
    done = command(*SPARSIFY, "--images", "single.npy")
    assert_refused(done, "this is a single image: save a few hundred, (N, 1, H, W)")


def test_folder_without_images_is_refused(command: Command, workshop: Path) -> None:
    (workshop / "empty").mkdir(exist_ok=True)
    assert_refused(command(*SPARSIFY, "--images", "empty"), "contains no image files")
    assert_refused(command(*SPARSIFY, "--images", "nowhere"), "there is no nowhere")
    assert_refused(command(*SPARSIFY, "--images", "nets.py"), ".npy, .npz or .pt")


def test_unreadable_image_is_named(command: Command, workshop: Path) -> None:
    (workshop / "torn").mkdir(exist_ok=True)
    (workshop / "torn" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    assert_refused(command(*SPARSIFY, "--images", "torn"), "a.png", "repair or remove it")


def test_images_of_several_sizes_are_refused(command: Command, workshop: Path, image: Any) -> None:
    (workshop / "sizes").mkdir(exist_ok=True)
    for size in (8, 9):
        image.new("RGB", (size, size)).save(workshop / "sizes" / f"{size}.png")
    assert_refused(command(*SPARSIFY, "--images", "sizes"), "(8, 8) and (9, 9)", "--resize")


def test_wrong_number_of_channels_is_refused(command: Command) -> None:
    assert_refused(command(*SPARSIFY, "--images", "color.npy"), "have 3 channels", "0 reads 1")
    words = (*SPARSIFY, "--images", "x.npy", "--mean", "0.1,0.2,0.3")
    assert_refused(command(*words), "--mean has 3 numbers")
