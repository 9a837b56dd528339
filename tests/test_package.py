"""The public face: its names, what it imports, its wheel's typing marker."""

import subprocess
import sys
from importlib.resources import files

import entrim


def test_every_public_name_exists_and_says_what_it_is():
    for name in entrim.__all__:
        assert (getattr(entrim, name).__doc__ or "").strip(), name


def test_the_package_is_typed():
    assert files("entrim").joinpath("py.typed").is_file()


def test_the_core_imports_without_any_extra():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['scipy', 'sklearn', 'optuna']))"
    code = f"{blocked}; import entrim, torch; x = torch.eye(4); m = entrim.Moments.of(x, x)"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; print(entrim.solve(m).status.converged)"],
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == "True", run.stderr
