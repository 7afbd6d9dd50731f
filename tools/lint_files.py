#!/usr/bin/env python3
"""Runs clang-tidy over the files named, one per core, and remembers the files that are clean.

  tools/lint_files.py TOOL FILE...

A file's verdict is known by what the checks see of it: the preprocessed text with NOLINT comments,
.clang-tidy and the tool's version. Clean files' marks lie in the user's cache folder, so that a second
run, in any clone, takes the preprocessor's time. Defects are never remembered.

PITH_LINT_UNTIL, seconds since 1970, ends a run that would outlast CI's hour: files that it did not
come to are counted aloud, and the marks of the others stay for the next run."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

CUDA_HOST = re.compile(r'(/cuda/[^/]*|_cuda)\.cc$')
# One instruction set is enough here: Highway would show each kernel to clang-tidy once for each.
ONE_TARGET = '-DHWY_COMPILE_ONLY_STATIC'


def commands(build):
    entries = json.loads(pathlib.Path(build, 'compile_commands.json').read_text())
    return {os.path.relpath(entry['file']): entry for entry in entries}


def seen_by_the_checks(entry):
    words = shlex.split(entry['command'])
    del words[words.index('-o'):words.index('-o') + 2]
    run = subprocess.run([*words, ONE_TARGET, '-E', '-C', '-w'], cwd=entry['directory'], capture_output=True)
    if run.returncode != 0:
        return None
    # Line markers name folders of this machine, and comments say nothing to the checks but NOLINT.
    text = re.sub(rb'^# \d+ "[^\n]*$', b'', run.stdout, flags=re.MULTILINE)
    text = re.sub(rb'//[^\n]*|/\*.*?\*/', lambda m: m[0] if b'NOLINT' in m[0] else b'', text,
                  flags=re.DOTALL)
    return re.sub(rb'\s+', b' ', text)


class Linter:
    def __init__(self, tool):
        self.tool = tool
        self.rules = pathlib.Path('.clang-tidy').read_bytes()
        self.rules += subprocess.run([tool, '--version'], capture_output=True, check=True).stdout
        cache = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
        self.clean = pathlib.Path(cache, 'pith', 'lint')
        self.commands = {}
        self.until = float(os.environ.get('PITH_LINT_UNTIL', 'inf'))
        self.left = []  # files that the time did not suffice for

    def command(self, build, name):
        if build not in self.commands:
            self.commands[build] = commands(build)
        return self.commands[build].get(name)

    def lint(self, name, build):
        """(clean, output, whether it was known before)"""
        entry = self.command(build, name)
        text = seen_by_the_checks(entry) if entry else None
        mark = None
        if text is not None:
            mark = self.clean / hashlib.sha256(self.rules + name.encode() + text).hexdigest()
            if mark.exists():
                return True, '', True
        if time.time() > self.until:
            self.left.append(name)
            return True, '', False
        run = subprocess.run([self.tool, '-p', build, '--quiet', f'--extra-arg={ONE_TARGET}', name],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if run.returncode == 0 and mark:
            self.clean.mkdir(parents=True, exist_ok=True)
            mark.touch()
        return run.returncode == 0, run.stdout, False


def main():
    linter = Linter(sys.argv[1])
    # Largest files first, so that no core is left with a long one at the end.
    names = sorted(sys.argv[2:], key=lambda name: -os.path.getsize(name))
    jobs = [(name, 'build/cuda' if CUDA_HOST.search(name) else 'build') for name in names]
    if not pathlib.Path('build/cuda/compile_commands.json').exists():
        count = len(jobs)
        jobs = [job for job in jobs if job[1] == 'build']
        print(f'lint: SKIPPED {count - len(jobs)} files of the CUDA build, build/cuda is not configured')
    for build in {build for _, build in jobs}:
        linter.command(build, '')
    known, failed = 0, 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for clean, output, before in pool.map(lambda job: linter.lint(*job), jobs):
            known += before
            if not clean:
                failed += 1
                print(output, end='', flush=True)
    if linter.left:
        print(f'lint: SKIPPED {len(linter.left)} files, the time ran out: {" ".join(linter.left)}')
    print(f'lint: {len(jobs)} files, {known} of them known to be clean, {failed} with defects')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
