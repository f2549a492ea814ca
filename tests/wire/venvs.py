"""The two Python environments of the wire tests, under `.venv/` in the project's root."""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
VENVS = ROOT / ".venv"


def venv(name):
    """The environment `name`, made or renewed if its requirements file is not the one it was made
    from. Answers its folder of commands."""
    folder = VENVS / name
    requirements = HERE / f"requirements-{name}.txt"
    made_from = folder / "made-from"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not made_from.exists() or made_from.read_text() != wanted:
        print(f"making {folder.relative_to(ROOT)} from {requirements.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", str(requirements)], check=True)
        made_from.write_text(wanted)
    return folder / "bin"
