"""How hypothesis draws, always the same examples, and an import that fails on request."""

import builtins
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

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
