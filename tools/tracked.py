"""The files that git has, for the checks of this folder."""

import subprocess

SOURCES = (".h", ".cc", ".cu", ".cuh")


def tracked(root, endings=("",)):
    """Paths, relative to `root`, of tracked files that exist and whose names end so."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split("\0") if path.endswith(endings) and (root / path).is_file()]
