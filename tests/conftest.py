"""Types checked at run time, the examples of hypothesis, and an import that fails on request."""

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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


install_import_hook(modules_with_shapes(), "beartype.beartype")

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
