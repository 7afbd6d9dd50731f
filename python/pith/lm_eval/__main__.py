"""lm_eval's command line, with --model pith and Pith's tasks."""

import sys

from lm_eval.__main__ import cli_evaluate

from . import TASKS


def main():
    command, given = (sys.argv[1] if len(sys.argv) > 1 else ""), {a.split("=")[0] for a in sys.argv}
    if command in ("run", "ls", "validate") and "--include_path" not in given:
        sys.argv += ["--include_path", str(TASKS)]
    if command == "run" and "--device" not in given:
        sys.argv += ["--device", "cpu"]  # lm_eval's own default is a GPU, there or not
    cli_evaluate()


if __name__ == "__main__":
    main()
