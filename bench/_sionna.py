"""A Python that has Sionna beside the packages of this one: an environment in ``build/sionna``.

``python bench/_sionna.py`` makes it; then
``build/sionna/bin/python -m ranloom.ldpc.against_sionna`` compares everything with Sionna. Nothing
is installed into the environment that this runs in.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sionna"


def package() -> str:
    """Requirement of the extra ``oracle``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = project["optional-dependencies"]["oracle"]
    return str(requirement)


def interpreter() -> Path | None:
    """Python with Sionna, installed on first use; None where it cannot be."""
    if importlib.util.find_spec("sionna"):
        return Path(sys.executable)
    python = FOLDER / "bin" / "python"
    done = FOLDER / "installed"
    fresh = not done.exists()
    if fresh:
        venv.create(FOLDER, with_pip=True, clear=True)
    paths = sysconfig.get_paths(vars={"base": str(FOLDER), "platbase": str(FOLDER)})
    own = Path(paths["purelib"]) / "beside.pth"
    own.write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT}\n", encoding="utf-8")
    if not fresh:
        return python
    wanted = package()
    print(f"Installing {wanted} into {FOLDER}: once", flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", wanted]
    if subprocess.run(install, check=False).returncode:
        print(f"{wanted} could not be installed: no comparison with it")
        return None
    done.touch()
    return python


if __name__ == "__main__":
    print(interpreter())
