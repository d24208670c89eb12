"""Makes PyTorch's wheel importable without the gigabytes of GPU libraries that it is linked to.

usage: stand_ins.py SITE_PACKAGES

PyPI has no PyTorch for x86-64 Linux without CUDA. Its libraries are linked to those of NVIDIA, so
that the dynamic linker wants each of these files, with the versions and the symbols that are asked
for; but on a machine without a GPU nothing in them is ever called. This program reads what the
libraries in SITE_PACKAGES/torch/lib ask for, and writes beside them one small library for each that
is missing. All of its functions return 999 (`cudaErrorUnknown`). The driver, libcuda.so.1, is no
stand-in's business: PyTorch opens it by itself, where there is one. Install the real libcudart
before: it is small, and it is what says that there is no GPU.

Needs `readelf` and `cc`. Prints the names of what it made.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

# What the driver of a GPU brings, and no package does.
DRIVER = "libcuda.so.1"
NVIDIA = re.compile(r"lib(cu|nv|nccl)")
TORCH = re.compile(r"lib(torch|c10|caffe2_nvrtc|shm).*\.so")


@dataclass
class Wanted:
    """What PyTorch asks of libraries that are not its own."""

    libraries: set[str] = field(default_factory=set)
    # library -> version -> symbol -> type
    versioned: dict[str, dict[str, dict[str, str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    # symbol -> type: the file does not say whose it is
    unversioned: dict[str, str] = field(default_factory=dict)


def readelf(option: str, file: Path) -> list[str]:
    """What readelf prints of a file."""
    command = ["readelf", option, "-W", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def versions(file: Path) -> dict[str, tuple[str, str]]:
    """The library and the name of each version that a file asks for, by the file's own number."""
    found: dict[str, tuple[str, str]] = {}
    library = None
    for line in readelf("-V", file):
        if match := re.search(r"File: (\S+)", line):
            library = match[1]
        elif library and (match := re.search(r"Name: (\S+).*Version: (\d+)", line)):
            found[match[2]] = (library, match[1])
    return found


def read(file: Path, wanted: Wanted) -> None:
    """Adds what one of PyTorch's libraries asks for."""
    for line in readelf("-d", file):
        if match := re.search(r"\(NEEDED\).*\[(.+)\]", line):
            wanted.libraries.add(match[1])
    known = versions(file)
    for line in readelf("--dyn-syms", file):
        # Num: Value Size Type Bind Vis Ndx Name[@Version (number)]
        words = line.split()
        if len(words) < 8 or words[6] != "UND":
            continue
        kind, (name, _, version) = words[3], words[7].partition("@")
        if not version:
            wanted.unversioned[name] = kind
        elif len(words) > 8 and (owner := known.get(words[8].strip("()"))):
            wanted.versioned[owner[0]][owner[1]][name] = kind


def owner_by_name(symbol: str, libraries: list[str]) -> str | None:
    """Whose a symbol without a version is: `ncclSend` is libnccl's, by its first letters."""
    stems = {library.removeprefix("lib").split(".")[0].lower(): library for library in libraries}
    fitting = [stem for stem in stems if symbol.lower().startswith(stem)]
    # `cusparseLtInit` begins with `cusparse`, too.
    return stems[max(fitting, key=len)] if fitting else None


def make(library: Path, nodes: dict[str, dict[str, str]], plain: dict[str, str]) -> None:
    """Compiles a library of that name, with these symbols by version, and these without one."""
    symbols = dict(plain)
    for names in nodes.values():
        symbols.update(names)
    code = ["typedef int nothing;"]
    for name, kind in sorted(symbols.items()):
        code.append(
            f"int {name}[64];" if kind == "OBJECT" else f"int {name}(void) {{ return 999; }}"
        )
    script = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in nodes.items()
    ]
    with tempfile.TemporaryDirectory() as directory:
        source, exports = Path(directory, "stand_in.c"), Path(directory, "versions")
        source.write_text("\n".join(code) + "\n")
        # Names like those of the C library's own functions are no reason to complain.
        command = ["cc", "-shared", "-fPIC", "-fno-builtin", "-w", "-Os", str(source)]
        command += ["-o", str(library), f"-Wl,-soname,{library.name}"]
        if script:
            exports.write_text("\n".join(script) + "\n")
            command.append(f"-Wl,--version-script={exports}")
        subprocess.run(command, check=True)


def main(site_packages: Path) -> None:
    """Makes all that are missing."""
    torch = site_packages / "torch" / "lib"
    here = {file.name for file in torch.iterdir()}
    here |= {file.name for file in site_packages.glob("nvidia/*/lib/*")}
    wanted = Wanted()
    for name in sorted(here):
        if TORCH.match(name):
            read(torch / name, wanted)
    missing = sorted(n for n in wanted.libraries - here if NVIDIA.match(n) and n != DRIVER)
    plain: dict[str, dict[str, str]] = defaultdict(dict)
    for symbol, kind in wanted.unversioned.items():
        if owner := owner_by_name(symbol, missing):
            plain[owner][symbol] = kind
    for library in missing:
        make(torch / library, wanted.versioned.get(library, {}), plain[library])
    print(f"stand-ins for {len(missing)} libraries: {', '.join(missing) or 'none is missing'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: stand_ins.py SITE_PACKAGES")
    main(Path(sys.argv[1]))
