"""The public package: its names, what it imports, its typing marker."""

import importlib.util
import subprocess
import sys
from importlib.resources import files

import pytest

import entrim

SHADOWS = {
    "entrim.hpo.search": "search",
    "entrim.distillation.distill": "distill",
    "entrim.surgery.trace": "trace",
    "entrim.surgery.measure": "measure",
    "entrim.entropic.solve": "solve",
}
"""Modules with the name of a public function."""


def run_python(code: str) -> str:
    """Return the output of a new Python process."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_every_public_name_exists_and_has_a_docstring():
    for name in entrim.__all__:
        assert (getattr(entrim, name).__doc__ or "").strip(), name


def test_the_package_is_typed():
    assert files("entrim").joinpath("py.typed").is_file()


def test_the_core_can_be_used_without_any_extra():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['scipy', 'sklearn', 'optuna']))"
    code = f"{blocked}; import entrim, torch; x = torch.eye(4); m = entrim.Moments.of(x, x)"
    assert run_python(f"{code}; print(entrim.solve(m).status.converged)") == "True"


def test_importing_the_package_does_not_import_torch():
    code = "import sys, entrim; {}; print('torch' in sys.modules)"
    assert run_python(code.format("entrim.__version__, dir(entrim)")) == "False"
    assert run_python(code.format("entrim.Budget")) == "True"


def test_dir_lists_the_public_names_only():
    code = "import entrim; names = dir(entrim); import entrim.hpo.search; print(names, dir(entrim))"
    names = sorted([*entrim.__all__, "__version__"])
    assert run_python(code) == f"{names} {names}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'entrim' has no attribute 'prune'"):
        entrim.prune  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("modules_first", [True, False])
def test_no_module_shadows_a_public_function(modules_first: bool):
    modules, package = f"import {', '.join(SHADOWS)}", "import entrim"
    functions = ", ".join(f"callable(entrim.{name})" for name in SHADOWS.values())
    used = f"all([{functions}])"
    first = f"{modules}; {package}" if modules_first else f"{package}; {used}; {modules}"
    assert run_python(f"{first}; print({used})") == "True"


def test_no_module_of_the_package_has_a_public_name():
    for name in entrim.__all__:
        assert importlib.util.find_spec(f"entrim.{name}") is None, name


def test_every_public_name_can_be_imported_alone():
    for name in ("sparsify", "Pruner", "search", "distill", "load", "register_rule"):
        assert run_python(f"from entrim import {name}; print(callable({name}))") == "True"
