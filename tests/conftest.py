"""Types checked at run time, the examples of hypothesis, and an import that fails on request."""

import builtins
import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch._export.utils
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

ROOT = Path(__file__).parents[1]


def modules_with_shapes() -> list[str]:
    """Return the modules whose signatures name shapes; checking all modules doubles the time."""
    return [
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for folder, package in ((ROOT / "src", "entrim"), (ROOT, "experiments"))
        for file in sorted((folder / package).rglob("*.py"))
        if "from jaxtyping import" in file.read_text()
    ]


check_types = jaxtyping.jaxtyped


def check_shapes(*, typechecker: Any) -> Callable[[Any], Any]:
    """Check the calls of what has shapes in its annotations; all calls take half of the time."""

    def decorate(target: Any) -> Any:
        if "jaxtyping." in str(getattr(target, "__annotations__", {})):
            return check_types(target, typechecker=typechecker)
        return target

    return decorate


jaxtyping.jaxtyped = check_shapes
install_import_hook(modules_with_shapes(), "beartype.beartype")

# Each torch.export lists all operators of PyTorch some thirty times, a tenth of a small run.
if hasattr(torch._export.utils, "_materialize_cpp_cia_ops"):
    list_operators = functools.cache(torch._export.utils._materialize_cpp_cia_ops)
    torch._export.utils._materialize_cpp_cia_ops = list_operators


def pytest_collection_finish() -> None:
    """Exempt what was imported from the collection of garbage, which is a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


@pytest.fixture
def uninstall(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a package look as if it were not installed."""
    real = builtins.__import__

    def hide(package: str) -> None:
        def without(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.split(".")[0] == package:
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)

    return hide
