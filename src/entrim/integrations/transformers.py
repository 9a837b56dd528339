"""Pruned networks of transformers as folders that `from_pretrained` loads, and on the Hub.

The folder contains a subclass with the smaller sizes, so it is loaded with `trust_remote_code=True`
and without entrim.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from entrim.errors import SaveError
from entrim.graph.eager import copy_without_hooks
from entrim.integrations.packages import check_new_folder, import_package
from entrim.records import Record
from entrim.report.assessment import assess
from entrim.report.summary import Rows, size_rows, unseen_rows
from entrim.storage import atomic
from entrim.storage.model_folder import LOADER, LOADER_CODE
from entrim.surgery.load_model import name_tensors
from entrim.surgery.prune import ModelStructure, SourceModel

TASKS = {
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForSemanticSegmentation": "image-segmentation",
    "AutoModelForDepthEstimation": "depth-estimation",
    "AutoModelForObjectDetection": "object-detection",
    "AutoBackbone": "image-feature-extraction",
    "AutoModel": "image-feature-extraction",
}
"""Automatic classes that load networks for images, and the task on the Hub."""
MODELING = "modeling_pruned"
_CODE = '''\
"""{kind} with fewer channels, pruned by entrim, which is not needed here."""

import torch
from transformers import {kind}

from .load_model import name_tensors, rebuild


class Pruned{kind}({kind}):
    """The network with the sizes in `config.pruned`; `from_pretrained` loads its weights."""

    def __init__(self, config):
        super().__init__(config)
        tensors = dict(name_tensors(self))
        for name, shape in config.pruned["shapes"].items():
            tensors[name] = torch.empty(shape, dtype=tensors[name].dtype)
        rebuild(self, tensors, **config.pruned["structure"])
'''


def save_transformers(
    small: nn.Module, folder: str | os.PathLike[str], *, record: Record | None = None
) -> None:
    """Write a pruned network of transformers as a folder for `from_pretrained`.

    The folder is loaded without entrim, by `AutoModelForImageClassification.from_pretrained(folder,
    trust_remote_code=True)` or the automatic class of the network. Save the image processor there,
    too: `processor.save_pretrained(folder)`.

    Parameters
    ----------
    small : nn.Module
        The pruned network, `result.model`; its class is one of transformers.
    folder : path
        A new or empty folder.
    record : Record, optional
        `result.record`, whose figures are written into the model card.

    Raises
    ------
    SaveError
        If the network is not a pruned network of transformers, or the folder is not empty.
    MissingPackageError
        If transformers is not installed.
    """
    transformers = import_package("transformers", "transformers", "save_transformers")
    kind, place = type(small).__name__, Path(folder)
    origin = SourceModel.of(small)
    if origin is None or getattr(transformers, kind, None) is not type(small):
        raise SaveError(
            f"this {kind} is not a network of transformers that entrim pruned: pass result.model"
        )
    check_new_folder(place)
    classes = _automatic_classes(transformers, small)
    copied: Any = copy_without_hooks(small)
    copied.config.pruned = {"shapes": _changed_shapes(small, origin), "structure": _form(small)}
    copied.config.auto_map = dict.fromkeys(classes, f"{MODELING}.Pruned{kind}")
    try:
        copied.save_pretrained(place)
        _name_class(place / "config.json", f"Pruned{kind}")
        atomic.write(place / f"{MODELING}.py", _CODE.format(kind=kind).encode())
        atomic.write(place / LOADER, LOADER_CODE)
        atomic.write(place / "README.md", model_card(small, classes[0], record).encode())
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error.strerror}): free space, or pass another folder"
        ) from error


def push_to_hub(
    folder: str | os.PathLike[str],
    repository: str,
    *,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload a folder of `save_transformers` to the Hugging Face Hub and return its address.

    Parameters
    ----------
    folder : path
        The folder.
    repository : str
        The name of the repository, such as "someone/resnet-50-pruned"; it is created if needed.
    private : bool, optional
        Whether a new repository is private; by default as in the settings of the account.
    token : str, optional
        An access token; by default that of `hf auth login` or `HF_TOKEN`.

    Raises
    ------
    SaveError
        If the folder is not one of `save_transformers`, or the Hub refuses the upload.
    MissingPackageError
        If huggingface_hub is not installed.
    """
    hub = import_package("huggingface_hub", "huggingface_hub", "push_to_hub")
    place = Path(folder)
    if not (place / f"{MODELING}.py").is_file():
        raise SaveError(f"{place} was not written by save_transformers: pass its folder")
    api = hub.HfApi(token=token)
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=place, commit_message="Upload a pruned network"
        )
    except Exception as error:  # of the Hub, its HTTP client, or the connection
        reason = (str(error).splitlines() or [""])[0]
        raise SaveError(
            f"{repository} was not uploaded ({type(error).__name__}: {reason}): check the name, "
            "the connection, and the token of hf auth login"
        ) from error
    return str(address)


def model_card(small: nn.Module, automatic: str, record: Record | None) -> str:
    """Return the model card: what was pruned, the figures of the record, and how to load it."""
    settings: Any = small.config
    base = str(getattr(settings, "_name_or_path", "") or "")
    known = base.count("/") == 1 and not base.startswith((".", "/")) and not Path(base).exists()
    head = ["library_name: transformers", f"pipeline_tag: {TASKS[automatic]}"]
    head += [f"base_model: {base}"] if known else []
    head += ["tags:", "- entrim", "- pruning"]
    parts = [
        "\n".join(["---", *head, "---"]),
        f"# {type(small).__name__}, pruned",
        (f"[{base}](https://huggingface.co/{base})" if known else "A network of transformers")
        + " with fewer channels, pruned without labels by entrim. entrim is not needed to load it:",
        f"    from transformers import {automatic}\n\n"
        f'    model = {automatic}.from_pretrained("<this repository>", trust_remote_code=True)',
    ]
    if record is not None:
        parts += [_table(size_rows(record))]
        parts += [_table(unseen_rows(record))] if record.holdout is not None else []
        parts += [
            assess(record).text,
            f"It was pruned with {record.images:,} images and entrim {record.versions['entrim']}.",
        ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Rows) -> str:
    """Return rows as a table in Markdown; the first one is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _automatic_classes(transformers: Any, small: nn.Module) -> list[str]:
    """Return the automatic classes that load the class of `small`."""
    settings: Any = small.config
    found = []
    for name in TASKS:
        mapping = getattr(transformers, name)._model_mapping
        classes = mapping.get(type(settings), ())
        if type(small) in (classes if isinstance(classes, tuple) else (classes,)):
            found.append(name)
    if not found:
        raise SaveError(
            f"no automatic class of transformers loads a {type(small).__name__}: use "
            "result.save(folder), whose load_model.py needs no entrim"
        )
    return found


def _changed_shapes(small: nn.Module, origin: SourceModel) -> dict[str, list[int]]:
    """Return the shapes of all tensors that pruning changed."""
    stored = small.state_dict()
    changed: dict[str, list[int]] = {}
    for name, tensor in name_tensors(small):
        shape = list(tensor.shape)
        if origin.tensors[name].endswith(str(shape)):
            continue
        if name not in stored:
            raise SaveError(
                f"{name} was pruned and is not in the state dict, so from_pretrained cannot load "
                "it: use result.save(folder), whose load_model.py needs no entrim"
            )
        changed[name] = shape
    return changed


def _form(small: nn.Module) -> Mapping[str, Any]:
    """Return the structure of `small` without training modes and memory formats."""
    origin = SourceModel.of(small)
    assert origin is not None
    return {**ModelStructure.of(small, origin).to_plain(), "channels_last": [], "training": []}


def _name_class(file: Path, class_name: str) -> None:
    """Write the name of the subclass into a config.json."""
    settings = json.loads(file.read_text(encoding="utf-8"))
    atomic.write(file, json.dumps({**settings, "architectures": [class_name]}, indent=2).encode())
