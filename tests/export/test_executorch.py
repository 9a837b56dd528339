"""A pruned network computes the same outputs in ExecuTorch, with its own kernels and XNNPACK."""

from pathlib import Path

import pytest
import torch

from entrim import Plan, apply_plan
from tests.pipeline.networks import Residual, images

pytest.importorskip("executorch", reason="needs executorch: pip install executorch")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accelerated", [False, True], ids=["portable", "xnnpack"])
def test_executorch_computes_the_outputs_of_a_pruned_network(
    accelerated: bool, tmp_path: Path
) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (  # pyright: ignore[reportMissingImports]
        XnnpackPartitioner,
    )
    from executorch.exir import (  # pyright: ignore[reportMissingImports]
        to_edge_transform_and_lower,
    )
    from executorch.runtime import Runtime  # pyright: ignore[reportMissingImports]

    x = images(1, 3, 8, 8)
    small = apply_plan(Residual(), Plan({"conv1": range(5)}), x).eval()
    program = torch.export.export(small, (x,))
    partitioner = [XnnpackPartitioner()] if accelerated else []
    made = to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch()
    (tmp_path / "small.pte").write_bytes(made.buffer)
    method = Runtime.get().load_program(tmp_path / "small.pte").load_method("forward")
    (found,) = method.execute([x])
    with torch.no_grad():
        expected = small(x)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
