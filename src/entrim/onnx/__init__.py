"""Networks in ONNX files: import them as PyTorch modules, and write pruned ones back.

>>> import entrim.onnx
>>> entrim.onnx.load("no/such/file.onnx")
Traceback (most recent call last):
...
entrim.errors.OnnxError: there is no file no/such/file.onnx: name an .onnx file
"""

from entrim.onnx.importer import load
from entrim.onnx.model import OnnxModel
from entrim.onnx.writer import Written, save

__all__ = ["OnnxModel", "Written", "load", "save"]
