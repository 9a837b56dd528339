"""Compute the references again: `python -m tests.regression.pin [case ...]`.

Prints every entry that changed. Entries that still agree keep the value that they have, so that the
file shows what changed and nothing else.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.regression.cases import CASES
from tests.regression.results import agree, differences

REFERENCES = Path(__file__).with_name("references.json")
EMPTY: dict[str, dict[str, Any]] = {"kept": {}, "numbers": {}, "rough": {}}


def read() -> dict[str, Any]:
    """Return the references of all cases."""
    return json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}


def write(references: dict[str, Any]) -> None:
    """Replace the file of references in one step."""
    text = "{\n" + ",\n".join(_lines(references)) + "\n}\n"
    handle, part = tempfile.mkstemp(dir=REFERENCES.parent, prefix=".references-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        Path(part).chmod(0o644)
        Path(part).replace(REFERENCES)
    except BaseException:
        Path(part).unlink()
        raise


def _lines(references: dict[str, Any]) -> list[str]:
    """Return the references as JSON, one entry on a line."""
    cases = []
    for name, result in references.items():
        parts = []
        for part, entries in result.items():
            lines = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
            parts.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n  }")
        cases.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    return cases


def merged(reference: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the result `found`, with the values of `reference` wherever these agree."""
    return {
        part: {
            name: old
            if (old := reference[part].get(name)) is not None and agree(old, new, part)
            else new
            for name, new in entries.items()
        }
        for part, entries in found.items()
    }


def main() -> None:
    """Compute the named cases again, or all of them, and write the references."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="a case to compute; all of them without a name")
    names = parser.parse_args().case or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}: choose from {', '.join(CASES)}")
    references = read()
    for name in sorted(references.keys() - CASES.keys()):
        print(f"{name}: removed, there is no such case")
    for name in names:
        found = CASES[name]().as_dict()
        old = references.get(name, EMPTY)
        print(f"{name}: {'new' if name not in references else 'computed'}")
        if name in references:
            for line in differences(old, found):
                print(f"  {line}")
        references[name] = merged(old, found)
    write({name: references[name] for name in CASES if name in references})


if __name__ == "__main__":
    main()
