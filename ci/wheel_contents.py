"""Check that a wheel holds every module of our packages, their type markers, and nothing else."""

import sys
from pathlib import Path
from zipfile import ZipFile

ROOTS = (".", "backends", "kernels")


def expected() -> set[str]:
    """Files of all `dflash_*` packages, as paths inside the wheel."""
    found = set()
    for root in map(Path, ROOTS):
        for package in root.glob("dflash_*"):
            files = (
                path for path in package.rglob("*") if path.suffix in (".py", ".c") or path.name == "py.typed"
            )
            found |= {path.relative_to(root).as_posix() for path in files}
    return found


def main(wheel: str) -> int:
    """Exit code: 0 when the contents are as they should be."""
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    missing, stray = expected() - names, names - expected()
    for name in sorted(missing):
        print(f"{wheel} lacks {name}", file=sys.stderr)
    for name in sorted(stray):
        print(f"{wheel} holds {name}, which is not of our packages", file=sys.stderr)
    print(f"{wheel}: {len(names)} files")
    return 1 if missing or stray else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
