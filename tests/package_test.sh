#!/usr/bin/env bash
# Both packages of what was built: the Debian one names what it needs; the tarball's program runs where it
# is unpacked, with the libraries beside it.
#   tests/package_test.sh REPO BUILD      exits 77 where dpkg or the program is missing
set -euo pipefail
repo=$1 build=$2
command -v dpkg-shlibdeps >/dev/null && [ -x "$build/bin/pith" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "package_test: $1" >&2; exit 1; }

(cd "$build" && cpack -G 'DEB;TGZ' -B "$work") >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
deb=$(echo "$work"/pith_*.deb)
needs=$(dpkg-deb -f "$deb" Depends)
for library in libc6 libfmt libicu libsentencepiece; do
  [[ "$needs" == *"$library"* ]] || fail "the package does not depend on $library: $needs"
done
dpkg-deb -c "$deb" >"$work/files"
for file in bin/pith share/man/man1/pith.1 share/man/man1/pith-run.1 share/bash-completion/completions/pith; do
  grep -qE " \./usr/$file(\.gz)?$" "$work/files" || fail "the package has no /usr/$file"
done
! grep -qE 'include/|\.a$|lib/pith/' "$work/files" || fail "the package holds more than the program"

mkdir "$work/anywhere"
tar xzf "$work"/pith-*.tar.gz -C "$work/anywhere" --strip-components=1
program=$work/anywhere/bin/pith
# One that is found elsewhere could be missing on another machine.
elsewhere=$(ldd "$program" | grep '=>' | grep -vF "$work/anywhere/" |
  grep -vE '^\s*lib(c|m|gcc_s|stdc\+\+|dl|rt|pthread)\.so' || true)
[ -z "$elsewhere" ] || fail "libraries outside the tarball: $elsewhere"
said=$(env -i "$program" run -m "$repo/models/demo" -p 'The ship' -n 4 -q --temp 0)
[[ "$said" == "The ship"* ]] || fail "the program of the tarball says: $said"
