"""The state of a run on disk: replaced in one step, sealed, and tied to the run that wrote it."""

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entrim import atomic
from entrim.errors import CheckpointError, OtherRunError, SaveError

_HEAD = b"entrim checkpoint 1\n"
_SEAL = 64
"""The hexadecimal digits of the checksum behind the head."""


def write_checkpoint(file: Path, identity: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Put `state`, tensors and plain values, into `file` in one step."""
    stream = io.BytesIO()
    torch.save({"identity": dict(identity), "state": dict(state)}, stream)
    content = stream.getvalue()
    seal = hashlib.sha256(content).hexdigest().encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(file, _HEAD + seal + content)
    except OSError as error:
        raise SaveError(
            f"the checkpoint {file} cannot be written ({error}): make room or choose another "
            "place; one that was there before is intact"
        ) from error


def read_checkpoint(file: Path, identity: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the state in `file`, None where there is no such file.

    A file that is damaged, or that another run wrote, is refused: it is never overwritten.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {file} cannot be read ({error}): choose another file"
        ) from error
    if not content.startswith(_HEAD):
        raise CheckpointError(
            f"{file} is no checkpoint of this entrim: choose a file that does not exist yet"
        )
    seal, content = content[len(_HEAD) : len(_HEAD) + _SEAL], content[len(_HEAD) + _SEAL :]
    if hashlib.sha256(content).hexdigest().encode() != seal:
        raise CheckpointError(
            f"the checkpoint {file} was cut short or changed: remove it to start again"
        )
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    refuse_other(f"the checkpoint {file}", found["identity"], identity)
    return found["state"]


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of the types, shapes and values of `tensors`, in this order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_other(what: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse `what` another run has written: the identities name the difference."""
    names = [*wanted, *(name for name in found if name not in wanted)]
    odd = [name for name in names if found.get(name) != wanted.get(name)]
    if odd:
        raise OtherRunError(
            f"{what} belongs to another run ({', '.join(odd)} differ): go on as in that run, "
            "choose another place, or remove this one"
        )
