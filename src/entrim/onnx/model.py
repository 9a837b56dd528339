"""The module of an imported ONNX file: its nodes are executed in order as PyTorch operations."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from entrim.errors import OnnxError
from entrim.onnx.operators import Channels, NodeInputs, run, size_tensor
from entrim.onnx.sizes import Place, Size
from entrim.onnx.source import Source


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An input that an earlier node computes, or an input of the network."""

    name: str


@dataclass(frozen=True, slots=True)
class TensorRef:
    """An input that is a parameter or buffer of the module of the node."""

    name: str


Reference = ValueRef | TensorRef | Size | None
"""Where a node finds an input; a size is the constant itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCall:
    """One node of the file."""

    label: str
    op_type: str
    inputs: tuple[Reference, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    module: str | None
    """The submodule with the weights of the node."""
    channels: Channels | None = None
    batch: int | None = None
    last_use: tuple[str, ...] = ()
    """Values that no later node reads."""


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where the file contains a tensor of the module: an input of a node, and its layout there."""

    node: int
    number: int
    layout: str
    """"same", "transposed", or "vector": along one axis of a tensor with more dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """The nodes of a file in the order of execution; shared by all copies of a module."""

    source: Source
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[NodeCall, ...]
    origins: Mapping[str, TensorSource]
    """Parameter or buffer -> its place in the file."""
    modules: Mapping[str, int]
    """Submodule -> its node in the file."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs with which the file was compared."""
    types: tuple[str, ...]
    """Types of the inputs in onnxruntime."""
    parity: float
    """Largest relative difference from onnxruntime at the import."""

    def __deepcopy__(self, memo: Any) -> "Nodes":
        return self


class OnnxModel(nn.Module):
    """A network that `load` imported from an ONNX file.

    One submodule per node with weights, named after the node. Use it like every other module:
    prune it with `sparsify`, and write the result with `entrim.onnx.save`.
    """

    nodes: Nodes

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        """Return the outputs of the network: one tensor, or a tuple."""
        return self.compute((x, *others))

    def compute(
        self,
        inputs: Sequence[Tensor],
        *,
        edits: MutableMapping[Place, int] | None = None,
        observe: Sequence[str] | None = None,
    ) -> Any:
        """Execute the nodes.

        Parameters
        ----------
        inputs : sequence of Tensor
            One tensor per input of the file.
        edits : dict, optional
            Receives every channel count of the file, for the current width.
        observe : sequence of str, optional
            Return these values instead of the outputs.
        """
        if len(inputs) != len(self.nodes.inputs):
            raise OnnxError(
                f"the network has the inputs {', '.join(self.nodes.inputs)}, got {len(inputs)}: "
                "pass one tensor for each"
            )
        values: dict[str, Any] = dict(zip(self.nodes.inputs, inputs, strict=True))
        for step in self.nodes.steps:
            results = execute(self, self.nodes.opset, step, values, edits)
            values.update(zip(step.outputs, results, strict=False))
            if observe is None:
                for name in step.last_use:
                    values.pop(name, None)
        if observe is not None:
            return [values[name] for name in observe]
        found = tuple(
            value if isinstance(value, Tensor) else size_tensor(value)
            for value in map(values.__getitem__, self.nodes.outputs)
        )
        return found[0] if len(found) == 1 else found

    def extra_repr(self) -> str:
        """Return the name of the file."""
        return self.nodes.source.file.name


def execute(
    model: nn.Module,
    opset: int,
    step: NodeCall,
    values: Mapping[str, Any],
    edits: MutableMapping[Place, int] | None = None,
) -> Sequence[Any]:
    """Return the outputs of one node."""
    module = None if step.module is None else model.get_submodule(step.module)
    inputs = [_resolve(reference, values, module) for reference in step.inputs]
    call = NodeInputs(
        label=step.label,
        inputs=inputs,
        attributes=step.attributes,
        opset=opset,
        outputs=len(step.outputs),
        module=module,
        channels=step.channels,
        batch=step.batch,
        edits=edits,
    )
    result = run(step.op_type, call)
    return result if isinstance(result, tuple | list) else (result,)


def _resolve(reference: Reference, values: Mapping[str, Any], module: nn.Module | None) -> Any:
    if isinstance(reference, ValueRef):
        return values[reference.name]
    if isinstance(reference, TensorRef):
        return getattr(module, reference.name)
    return reference


def mark_last_uses(steps: Sequence[NodeCall], outputs: Sequence[str]) -> tuple[NodeCall, ...]:
    """Return the steps with the values that each of them reads last."""
    needed, marked = set(outputs), []
    for step in reversed(steps):
        read = {reference.name for reference in step.inputs if isinstance(reference, ValueRef)}
        dead = (read | set(step.outputs)) - needed
        needed |= read
        marked.append(replace(step, last_use=tuple(sorted(dead))))
    return tuple(reversed(marked))
