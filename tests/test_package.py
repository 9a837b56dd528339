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


def run_python(*programs: str) -> list[str]:
    """Return the outputs of programs in a new Python process, each with a new import of entrim."""
    forget = (
        "for n in [n for n in sys.modules if n.partition('.')[0] == 'entrim']: del sys.modules[n]"
    )
    code = f"import sys\n{forget}\n".join(["import sys\n", *(f"{p}\n" for p in programs)])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_every_public_name_exists_and_has_a_docstring():
    for name in entrim.__all__:
        assert (getattr(entrim, name).__doc__ or "").strip(), name


def test_the_package_is_typed():
    assert files("entrim").joinpath("py.typed").is_file()


def test_the_core_can_be_used_without_any_extra():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['scipy', 'sklearn', 'optuna']))"
    code = f"{blocked}; import entrim, torch; x = torch.eye(4); m = entrim.Moments.of(x, x)"
    assert run_python(f"{code}; print(entrim.solve(m).status.converged)") == ["True"]


def test_importing_the_package_does_not_import_torch():
    code = "import sys, entrim; {}; print('torch' in sys.modules)"
    light, heavy = code.format("entrim.__version__, dir(entrim)"), code.format("entrim.Budget")
    assert run_python(light, heavy) == ["False", "True"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'entrim' has no attribute 'prune'"):
        entrim.prune  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_every_import_leads_to_the_public_names():
    modules, package = f"import {', '.join(SHADOWS)}", "import entrim"
    functions = ", ".join(f"callable(entrim.{name})" for name in SHADOWS.values())
    used = f"all([{functions}])"
    shadowed = [
        f"{modules}; {package}; print({used})",
        f"{package}; {used}; {modules}; print({used})",
    ]
    names = sorted([*entrim.__all__, "__version__"])
    lists = f"{package}; names = dir(entrim); import entrim.hpo.search; print(names, dir(entrim))"
    alone = [f"from entrim import {name}; print({name} is not None)" for name in entrim.__all__]
    printed = run_python(lists, *shadowed, *alone)
    assert printed == [f"{names} {names}"] + ["True"] * (2 + len(alone))


def test_no_module_of_the_package_has_a_public_name():
    for name in entrim.__all__:
        assert importlib.util.find_spec(f"entrim.{name}") is None, name
