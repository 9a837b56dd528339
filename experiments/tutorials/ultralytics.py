"""YOLOv8n of ultralytics, trained on drawn shapes, pruned, validated, trained further, exported."""

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import entrim
from entrim.integrations import ultralytics as integration
from experiments.tutorials import read_folder
from experiments.tutorials.shapes import write_shapes

SIDE, FITTED = 160, 300
COMMON = {"imgsz": SIDE, "device": "cpu", "workers": 0, "plots": False, "verbose": False}


def main(folder: Path) -> None:
    """Prune with 300 training images, and print the precision on 200 test images."""
    yolo: Any = import_module("ultralytics").YOLO
    torch.set_num_threads(1)
    data = write_shapes(folder / "shapes", SIDE)
    common = {**COMMON, "data": data, "project": folder / "runs"}
    full, small = folder / "full.pt", folder / "small.pt"
    if not full.exists():
        trained = yolo("yolov8n.yaml", verbose=False)
        trained.train(**common, epochs=22, batch=16, mosaic=0.5, close_mosaic=5, warmup_epochs=1)
        shutil.copy(trained.trainer.best, full)

    files = sorted((folder / "shapes/images/train").iterdir())[:FITTED]
    images = integration.ImageFiles(files, SIDE)
    result = integration.sparsify_yolo(yolo(full), images, entrim.Budget(macs=0.6))
    integration.save_yolo(result.model, small)

    again = yolo(small)
    rates = {"optimizer": "AdamW", "lr0": 3e-4, "warmup_epochs": 0, "mosaic": 0.0}
    again.train(**common, **rates, epochs=5, batch=16, trainer=integration.PrunedTrainer)
    found = {"original": full, "pruned": small, "trained further": again.trainer.best}
    found["ONNX"] = yolo(small).export(format="onnx", imgsz=SIDE, simplify=False, device="cpu")
    print(result.summary())
    for name, file in found.items():
        network = yolo(file, task="detect")
        box = network.val(**common, split="test", batch=1 if name == "ONNX" else 16).box
        print(f"{name}: mAP50 {box.map50:.3f}, mAP50-95 {box.map:.3f} on 200 test images")


if __name__ == "__main__":
    main(read_folder(__doc__))
