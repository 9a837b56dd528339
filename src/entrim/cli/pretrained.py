"""Networks of other libraries: `timm:NAME`, `torchvision:NAME`, `hf:NAME_OR_FOLDER`."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType

from torch import nn

from entrim.errors import CommandError
from entrim.integrations.packages import import_package


@dataclass(frozen=True, slots=True)
class Library:
    """A package with pre-trained networks."""

    package: str
    """The name with which pip installs it."""
    module: str
    build: Callable[[ModuleType, str, bool], nn.Module]
    """Called with the module, the name of a network, and whether its trained weights are used."""
    names: Callable[[ModuleType], list[str]]
    """Returns the names of all networks, or none if names are paths."""


def _transformers_model(library: ModuleType, name: str, trained: bool) -> nn.Module:
    factory = library.AutoModelForImageClassification
    if trained:
        return factory.from_pretrained(name, trust_remote_code=False).float()
    config = library.AutoConfig.from_pretrained(name, trust_remote_code=False)
    return factory.from_config(config).float()


LIBRARIES = {
    "timm": Library(
        "timm",
        "timm",
        lambda library, name, trained: library.create_model(name, pretrained=trained),
        lambda library: library.list_models(),
    ),
    "torchvision": Library(
        "torchvision",
        "torchvision.models",
        lambda library, name, trained: library.get_model(
            name, weights="DEFAULT" if trained else None
        ),
        lambda library: library.list_models(),
    ),
    "hf": Library("transformers", "transformers", _transformers_model, lambda library: []),
}


def read_pretrained(where: str, *, trained: bool) -> nn.Module | None:
    """Return the network that `where` names, None if it does not begin with a library.

    With `trained`, its weights are read from the cache of the library, or downloaded by it.
    """
    prefix, colon, name = where.partition(":")
    if not colon or prefix not in LIBRARIES:
        return None
    library = LIBRARIES[prefix]
    module = import_package(library.module, library.package, where)
    known = library.names(module)
    if known and ":" not in name and name.partition(".")[0] not in known:  # hf-hub:NAME of timm
        near = get_close_matches(name, known, n=4, cutoff=0.4)
        raise CommandError(
            f"{library.package} has no network {name!r}: name one of its {len(known)}, such as "
            f"{', '.join(near or known[:4])}"
        )
    try:
        return library.build(module, name, trained)
    except Exception as error:  # each library raises its own types
        reason = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"{library.package} cannot build {name} ({type(error).__name__}: {reason}): correct "
            "the name, connect to the internet for its weights, or pass --weights FILE"
        ) from error
