"""Import an ONNX file as a PyTorch module, compared with onnxruntime."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entrim.errors import OnnxError, TraceError
from entrim.graph.eager import neutral_context
from entrim.graph.tracer import ChannelLayout, trace_ops
from entrim.onnx.folding import Folded, fold_constants
from entrim.onnx.layers import BUILDERS, Layer, Weighted, constant_operands, is_channel_vector
from entrim.onnx.model import (
    NodeCall,
    Nodes,
    OnnxModel,
    Reference,
    TensorRef,
    TensorSource,
    ValueRef,
    execute,
    mark_last_uses,
)
from entrim.onnx.operators import COUNTED, SIZE_INPUTS, Channels
from entrim.onnx.runtime import Session, difference, example_inputs, is_equal
from entrim.onnx.sizes import Literal
from entrim.onnx.source import describe, first_line, open_source, opset_of, require_packages

_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_RESERVED = set(dir(nn.Module())) | {"nodes", "compute"}


@neutral_context()
def load(file: str | os.PathLike[str], *, input_shape: Sequence[int] | None = None) -> OnnxModel:
    """Import an ONNX file as a module in eval mode.

    Every import is compared with onnxruntime on random inputs. Nothing in the file is executed.
    Requires the extra `onnx`.

    Parameters
    ----------
    file : str or path
        The file; external data must be in its folder.
    input_shape : sequence of int, optional
        Shape of the input of the comparison, including the batch. Needed only if the file leaves
        sizes open, and the network does not run with common ones.

    Returns
    -------
    OnnxModel
        A module with one submodule per node with weights, named after the node.

    Raises
    ------
    OnnxError
        If the file is damaged, contains an operator that is not supported, or if the outputs of
        the module differ from those of onnxruntime by more than 1e-4.
    """
    source, proto = open_source(Path(file))
    session = Session(proto.SerializeToString(), str(file))
    folded = fold_constants(proto)
    inputs, expected = example_inputs(session, proto.graph, input_shape)
    build = _Import(proto, folded, inputs)
    model = build.run()
    names, outputs = session.inputs, tuple(value.name for value in proto.graph.output)
    nodes = Nodes(
        source=source,
        opset=build.opset,
        inputs=names,
        outputs=outputs,
        steps=mark_last_uses(build.steps, outputs),
        origins=build.origins,
        modules=build.modules,
        shapes=tuple(tuple(x.shape) for x in inputs),
        types=session.types,
        parity=0.0,
    )
    model.nodes = nodes
    model.nodes = replace(nodes, steps=_find_channels(model.eval(), inputs, build.values))
    with torch.no_grad():
        found = model.compute([x.clone() for x in inputs])
    error = difference(found if isinstance(found, tuple) else (found,), expected)
    if not is_equal(error, inputs):
        raise OnnxError(
            f"the imported network differs from onnxruntime by {error:.1e}, first at "
            f"{_first_difference(proto, model, inputs)}: export {file} without it, or split the "
            "file before this node with onnx.utils.extract_model"
        )
    model.nodes = replace(model.nodes, parity=error)
    return model


def _first_difference(proto: Any, model: OnnxModel, inputs: Sequence[Tensor]) -> str:
    """Return the first node whose outputs are not those of onnxruntime."""
    onnx, _ = require_packages()
    steps = {name: step for step in model.nodes.steps for name in step.outputs if name}
    with torch.no_grad():
        found = model.compute([x.clone() for x in inputs], observe=tuple(steps))
    own = {name: y for name, y in zip(steps, found, strict=True) if isinstance(y, Tensor)}
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in own)
    try:
        results = Session(whole.SerializeToString(), "the network").run(inputs)
    except Exception:
        return "its outputs"  # not all values at once fit into the memory of onnxruntime
    for (name, y), expected in zip(own.items(), results, strict=True):
        if not is_equal(difference([y], [expected]), inputs):
            return steps[name].label
    return "its outputs"


class _Import:
    """One import: the module is built node by node, while the nodes run on example inputs."""

    def __init__(self, proto: Any, folded: Folded, inputs: Sequence[Tensor]) -> None:
        self.graph, self.opset, self.folded = proto.graph, opset_of(proto), folded
        self.model = OnnxModel()
        self.steps: list[NodeCall] = []
        self.origins: dict[str, TensorSource] = {}
        self.modules: dict[str, int] = {}
        self.shared: dict[tuple[str, str], nn.Parameter] = {}
        self.merged: set[int] = set()
        stored = {tensor.name for tensor in self.graph.initializer}
        given = [value for value in self.graph.input if value.name not in stored]
        self.values: dict[str, Any] = dict(
            zip((value.name for value in given), inputs, strict=True)
        )
        sizes = [d.dim_value for d in given[0].type.tensor_type.shape.dim[:1]]
        self.batch = sizes[0] if sizes and sizes[0] > 0 else None
        self.users: dict[str, list[int]] = {}
        for number, node in enumerate(self.graph.node):
            for name in node.input:
                self.users.setdefault(name, []).append(number)
        self.outputs = {value.name for value in self.graph.output}

    def run(self) -> OnnxModel:
        """Build the module of every node that is not constant."""
        for number, node in enumerate(self.graph.node):
            if number in self.merged or all(name in self.folded.arrays for name in node.output):
                continue
            with torch.no_grad():
                self._add(number, node)
        for name in self.outputs & self.folded.arrays.keys():
            raise OnnxError(f"the output {name!r} is constant: remove it from the file")
        for name in self.outputs:
            if isinstance(self.values.get(name), tuple):
                raise OnnxError(f"the output {name!r} is a sequence: export single tensors")
        return self.model

    def _add(self, number: int, node: Any) -> None:
        attributes = self.folded.attributes[number]
        outputs = tuple(node.output)
        constants = self._constant_inputs(node)
        layer = None
        if node.op_type in BUILDERS:
            layer, outputs = self._layer(number, node, attributes, constants)
        name = None
        if layer is None and (operands := self._operands(node, constants)):
            layer = constant_operands(operands)
        if layer is not None:
            name = self._register(number, node, layer)
        step = NodeCall(
            label=describe(node),
            op_type=node.op_type,
            inputs=tuple(self._references(number, node, layer)),
            outputs=outputs,
            attributes=attributes,
            module=name,
            batch=self._batch(node),
        )
        results = self._run(step)
        for output, value in zip(outputs, results, strict=False):
            self.values[output] = value
        for output in outputs[len(results) :]:
            if output and (output in self.users or output in self.outputs):
                raise OnnxError(
                    f"{describe(node)} is not supported with the output {output!r}: export the "
                    "network without it"
                )
        self.steps.append(step)

    def _run(self, step: NodeCall) -> Sequence[Any]:
        try:
            return execute(self.model, self.opset, step, self.values)
        except OnnxError:
            raise
        except Exception as error:
            raise OnnxError(
                f"{step.label} cannot be executed ({first_line(error)}): check the file with "
                "onnx.checker.check_model, or export it again"
            ) from error

    def _constant_inputs(self, node: Any) -> dict[int, np.ndarray]:
        return {
            k: self.folded.arrays[name]
            for k, name in enumerate(node.input)
            if name in self.folded.arrays
        }

    def _layer(
        self, number: int, node: Any, attributes: Mapping[str, Any], constants: dict[int, Any]
    ) -> tuple[Layer | None, tuple[str, ...]]:
        """Return the module of a node with weights, and its outputs with a merged addition."""
        x = self.values.get(node.input[0])
        if not isinstance(x, Tensor):
            return None, tuple(node.output)
        weighted = Weighted(
            attributes=attributes,
            constants=constants,
            shape=tuple(x.shape),
            opset=self.opset,
            outputs=sum(bool(name) for name in node.output),
        )
        layer = BUILDERS[node.op_type](weighted)
        follower = None if layer is None else self._following_bias(node, layer.module, constants)
        if follower is None:
            return layer, tuple(node.output)
        addition, place = follower
        name = self.graph.node[addition].input[place]
        layer = BUILDERS[node.op_type](replace(weighted, bias=self.folded.arrays[name]))
        self.merged.add(addition)
        return layer, tuple(self.graph.node[addition].output)

    def _following_bias(
        self, node: Any, module: nn.Module, constants: Mapping[int, Any]
    ) -> tuple[int, int] | None:
        """Return the addition of a constant per channel that is the only user of a layer."""
        if node.op_type not in _LAYERS or 2 in constants or len(node.input) > 2:
            return None
        users, output = self.users.get(node.output[0], []), node.output[0]
        if len(users) != 1 or output in self.outputs:
            return None
        other = self.graph.node[users[0]]
        places = [k for k, name in enumerate(other.input) if name in self.folded.arrays]
        if other.op_type != "Add" or len(places) != 1:
            return None
        x = self.values[node.input[0]]
        linear = isinstance(module, nn.Linear)
        width = module.out_features if linear else getattr(module, "out_channels", 0)
        shape = (*x.shape[:-1], width) if linear else (x.shape[0], width, *x.shape[2:])
        array = self.folded.arrays[other.input[places[0]]]
        axis = -1 if linear else 1
        return (users[0], places[0]) if is_channel_vector(array, shape, axis) else None

    def _operands(self, node: Any, constants: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Return the constants that are tensors, if the node computes with tensors."""
        if not any(isinstance(self.values.get(name), Tensor) for name in node.input):
            return {}
        sizes = SIZE_INPUTS.get(node.op_type, ())
        always = node.op_type in _LAYERS or node.op_type == "Concat"
        return {
            k: array
            for k, array in constants.items()
            if k not in sizes and (array.size > 1 or always)
        }

    def _references(self, number: int, node: Any, layer: Layer | None) -> Iterator[Reference]:
        owned = {} if layer is None else {k: n for n, (k, _) in layer.tensors.items()}
        for k, name in enumerate(node.input):
            if not name:
                yield None
            elif k in owned:
                yield TensorRef(owned[k])
            elif name in self.folded.arrays:
                yield self.folded.size(name, number, k)
            else:
                yield ValueRef(name)

    def _batch(self, node: Any) -> int | None:
        """Return the fixed batch size of the file, if the first input has it."""
        x = self.values.get(node.input[0]) if node.input else None
        fits = isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == self.batch
        return self.batch if fits else None

    def _register(self, number: int, node: Any, layer: Layer) -> str:
        name = _module_name(node, number, self.modules)
        self.model.add_module(name, layer.module.eval())
        self.modules[name] = number
        for tensor, (k, layout) in layer.tensors.items():
            reader = self.users[node.output[0]][0] if k == -1 else number
            inputs = self.graph.node[reader].input
            place = (
                next(i for i, n in enumerate(inputs) if n in self.folded.arrays) if k == -1 else k
            )
            self.origins[f"{name}.{tensor}"] = TensorSource(reader, place, layout)
            self._share(layer.module, tensor, (self.folded.copied_from(inputs[place]), layout))
        return name

    def _share(self, module: nn.Module, name: str, key: tuple[str, str]) -> None:
        """Use one parameter for nodes that read the same matrix or kernel.

        Exporters merge vectors that happen to be equal, such as the scales of new BatchNorms;
        these are not shared.
        """
        own = module._parameters.get(name)
        if own is None or own.dim() < 2 or sum(size > 1 for size in own.shape) < 2:
            return
        module._parameters[name] = self.shared.setdefault(key, own)


def _module_name(node: Any, number: int, existing: Mapping[str, int]) -> str:
    """Return a unique name of a submodule: that of the node, without special characters."""
    name = re.sub(r"\W+", "_", node.name, flags=re.ASCII).strip("_") or f"{node.op_type}_{number}"
    if name in _RESERVED or name in existing:
        name = f"{name}_{number}"
    return name


class _Observer(nn.Module):
    """Return intermediate values of a network as outputs."""

    def __init__(self, model: OnnxModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Any:
        return tuple(self.model.compute(inputs, observe=self.names))


def _find_channels(
    model: OnnxModel, inputs: Sequence[Tensor], values: Mapping[str, Any]
) -> tuple[NodeCall, ...]:
    """Return the steps with the axis of the channels, where sizes may be channel counts.

    A file contains the sizes of reshapes and splits as numbers. To prune the channels, these
    numbers must follow the width; the trace of the channels finds out which ones.
    """
    steps = model.nodes.steps
    counted = [
        step
        for step in steps
        if step.op_type in COUNTED
        and _reads_literals(step)
        and isinstance(values[_read_and_written(step)[0]], Tensor)
    ]
    if not counted:
        return steps
    layouts = _layouts(model, inputs, counted)
    found = {}
    for step in counted:
        x, y = (layouts.get(name) for name in _read_and_written(step))
        if x is not None and x.axis is not None:
            after = None if y is None else y.axis
            found[step] = Channels(x.axis, x.shape[x.axis], after)
    return tuple(replace(step, channels=found.get(step)) for step in steps)


def _read_and_written(step: NodeCall) -> tuple[str, str]:
    """Return the names of the first input and output of a step."""
    first = step.inputs[0]
    assert isinstance(first, ValueRef)
    return first.name, step.outputs[0]


def _layouts(
    model: OnnxModel, inputs: Sequence[Tensor], steps: Sequence[NodeCall]
) -> dict[str, ChannelLayout]:
    """Return the channel layouts of what the steps read and write; none if it cannot be traced."""
    names = list(dict.fromkeys(name for step in steps for name in _read_and_written(step)))
    sequences = {step.outputs[0] for step in steps if step.op_type == "SplitToSequence"}
    names = [name for name in names if name not in sequences]
    try:
        state = trace_ops(_Observer(model, names), tuple(inputs))
    except TraceError:
        return {}
    last: Any = list(next(iter(state.values)).graph.nodes)[-1]
    found = ((name, state.values.get(node)) for name, node in zip(names, last.args[0], strict=True))
    return {name: value for name, value in found if isinstance(value, ChannelLayout)}


def _reads_literals(step: NodeCall) -> bool:
    """Whether a step reads sizes that may be written in the file."""
    if not isinstance(step.inputs[0], ValueRef):
        return False
    attributes = any(
        isinstance(value, list | tuple) and any(isinstance(v, Literal) for v in value)
        for value in step.attributes.values()
    )
    return attributes or len(step.inputs) > 1
