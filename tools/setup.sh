#!/usr/bin/env bash
# Installs what Pith needs on Debian 12 or newer and Ubuntu 24.04 or newer; elsewhere, says exactly
# what is missing.
#   tools/setup.sh         everything: compiler, libraries, tools of the checks
#   tools/setup.sh build   only what building, testing and the demo need
#   tools/setup.sh models  that, and what `pith pull` needs to fetch models
#   tools/setup.sh python  what building needs, and what the Python package is built with
#   tools/setup.sh browser that, and Chromium, in which a test reads the report's page; Debian alone
#                          packages it, so that `everything` does without and the test is skipped
#   tools/setup.sh cluster that, and HAProxy, behind which a test runs three servers
#   tools/setup.sh fuzz    what building needs, and Clang with libFuzzer for `make fuzz`
#   tools/setup.sh nvcc    installs nothing: says whether the CUDA build has its compiler, and how
#                          CMake will find it
# Does nothing, quickly, when all is there. Exit codes: 0 ready, 1 something missing, 2 wrong use.
set -euo pipefail

# One need a line: scope | probe | Debian packages, of which the first that exists | plain name.
# A probe is cmd:NAME[,NAME...] (any of them), header:PATH or module:NAME of Python. It decides, so
# that hand-made installs count.
needs() {
  cat <<'LIST'
build|cmd:g++|g++|g++ 12 or newer
build|cmd:cmake|cmake|CMake 3.25 or newer
build|cmd:ninja|ninja-build|Ninja
build|cmd:make|make|GNU make
build|cmd:pkg-config|pkg-config pkgconf|pkg-config
build|cmd:git|git|git
build|cmd:ld|binutils|binutils
build|cmd:xz|xz-utils|xz
build|cmd:ccache|ccache|ccache
build|header:hwy/highway.h|libhwy-dev|Highway 1.0 or newer
build|header:dnnl.hpp|libdnnl-dev|oneDNN 2.6 or newer
build|header:CLI/CLI.hpp|libcli11-dev|CLI11 2
build|header:nlohmann/json.hpp|nlohmann-json3-dev|JSON for Modern C++ 3
build|header:fmt/format.h|libfmt-dev|fmt 9 or newer
build|header:unicode/uregex.h|libicu-dev|ICU
build|header:sentencepiece_processor.h|libsentencepiece-dev|SentencePiece 0.1.97 or newer
build|header:xxhash.h|libxxhash-dev|xxHash 0.8 or newer
build|header:gtest/gtest.h|libgtest-dev|GoogleTest
build|header:rapidcheck.h|librapidcheck-dev|RapidCheck
build|header:boost/beast.hpp|libboost-dev|Boost 1.74 or newer, for the server
build|header:histedit.h|libedit-dev|libedit
models|cmd:python3|python3|Python 3.9 or newer
models|cmd:pip3,pip|python3-pip|pip
python|cmd:python3|python3|Python 3.11 or newer
python|cmd:python3-config|python3-dev|headers of Python
python|module:ensurepip|python3-venv|venv of Python
browser|cmd:chromium,chromium-browser,google-chrome|chromium|Chromium, for the report's page
cluster|cmd:haproxy|haproxy|HAProxy, for several servers
checks|header:boost/context/detail/fcontext.hpp|libboost-context-dev|Boost.Context, for the emulated card
checks|cmd:tmux|tmux|tmux, for the walk through the program
checks|cmd:python3|python3|Python 3.9 or newer
checks|cmd:clang-format-14,clang-format|clang-format-14 clang-format|clang-format 14
checks|cmd:clang-tidy-14,clang-tidy|clang-tidy-14 clang-tidy|clang-tidy 14
fuzz|cmd:clang++|clang|Clang
fuzz|cmd:clang++|libclang-rt-dev|libFuzzer of Clang
LIST
}

# Prints the headers among $@ that the compiler does not find, in one run of the preprocessor.
absent_headers() {
  local header
  if ! command -v g++ >/dev/null; then
    printf '%s\n' "$@"
    return
  fi
  for header in "$@"; do
    printf '#if !__has_include(<%s>)\nabsent %s\n#endif\n' "$header" "$header"
  done | g++ -std=c++20 -E -P -x c++ - | sed -n 's/^absent //p' | tr -d ' '
}

# Prints the lines of needs() within scope $1 (build, models, python, browser, cluster, fuzz or all) that are not met.
missing() {
  local scope probe packages name headers command found
  mapfile -t headers < <(needs | sed -n 's/.*|header:\([^|]*\)|.*/\1/p')
  headers=" $(absent_headers "${headers[@]}" | tr '\n' ' ')"
  while IFS='|' read -r scope probe packages name; do
    [ "$1" = all ] && [[ "$scope" != @(browser|cluster|fuzz) ]] || [ "$scope" = build ] ||
      [ "$scope" = "$1" ] || continue
    found=no
    case "$probe" in
      cmd:*) for command in $(tr ',' ' ' <<<"${probe#cmd:}"); do
               PATH="$PATH:/usr/sbin" command -v "$command" >/dev/null && found=yes
             done ;;
      module:*) ! python3 -c "import ${probe#module:}" 2>/dev/null || found=yes ;;
      header:*) [[ "$headers" == *" ${probe#header:} "* ]] || found=yes ;;
    esac
    [ "$found" = yes ] || printf '%s|%s|%s|%s\n' "$scope" "$probe" "$packages" "$name"
  done < <(needs)
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif ! command -v sudo >/dev/null; then
    echo "setup: installing packages needs root, and there is no sudo" >&2
    return 1
  elif [ -t 0 ]; then
    sudo "$@"
  else
    sudo -n "$@"  # nobody is there to type a password
  fi
}

install_with_apt() {
  local packages=() lists scope probe names name candidate chosen
  lists=$(mktemp)
  as_root apt-get update -qq >"$lists" 2>&1 || {
    cat "$lists" >&2
    rm -f "$lists"
    return 1
  }
  rm -f "$lists"
  while IFS='|' read -r scope probe names name; do
    chosen=
    for candidate in $names; do
      # apt-cache policy names a candidate version only for what can be installed.
      if [[ "$(LC_ALL=C apt-cache policy "$candidate")" =~ Candidate:\ [^\(] ]]; then
        chosen=$candidate
        break
      fi
    done
    [ -n "$chosen" ] || { echo "setup: no package for $name (tried: $names)" >&2; continue; }
    packages+=("$chosen")
  done <<<"$1"
  [ "${#packages[@]}" -gt 0 ] || return 0
  echo "setup: installing ${packages[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${packages[@]}" </dev/null >/dev/null
}

# The two versions that no probe sees; prints a line for each that is too old.
too_old() {
  local cmake_version gxx_version
  cmake_version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p')
  gxx_version=$(g++ -dumpfullversion 2>/dev/null || true)
  older "$cmake_version" 3.25 && echo "CMake 3.25 or newer (found $cmake_version)"
  older "$gxx_version" 12 && echo "g++ 12 or newer (found $gxx_version)"
  return 0
}

older() {  # is version $1 below $2?
  [ -n "$1" ] && [ "$1" != "$2" ] &&
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# NVIDIA's compiler is in none of the distributions' free parts. CMake takes $CUDACXX, then nvcc on
# PATH; 12.4 is the first that compiles the kernels.
check_nvcc() {
  local nvcc=${CUDACXX:-nvcc} version
  if ! command -v "$nvcc" >/dev/null; then
    echo "setup: no nvcc: install NVIDIA's CUDA toolkit, 12.4 or newer, and put its bin folder on" \
      "PATH (often /usr/local/cuda/bin) or its path into CUDACXX" >&2
    return 1
  fi
  version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  if older "$version" 12.4; then
    echo "setup: $nvcc is CUDA $version; the kernels need 12.4 or newer" >&2
    return 1
  fi
  echo "setup: CUDA $version, $(command -v "$nvcc")"
}

main() {
  local scope=${1:-all} lacking old
  case "$scope" in
    build | models | python | browser | cluster | fuzz | all) ;;
    nvcc) check_nvcc; return ;;
    *) echo "usage: tools/setup.sh [build|models|python|browser|cluster|fuzz|all|nvcc]" >&2; exit 2 ;;
  esac
  lacking=$(missing "$scope")
  if [ -n "$lacking" ] && command -v apt-get >/dev/null; then
    install_with_apt "$lacking" || true  # what is still missing is named below
    hash -r
    lacking=$(missing "$scope")
  fi
  old=$(too_old)
  if [ -n "$lacking$old" ]; then
    echo "setup: not ready; missing here:" >&2
    [ -z "$lacking" ] || while IFS='|' read -r _ probe names name; do
      echo "  $name (${probe/:/ }; Debian package ${names// / or })" >&2
    done <<<"$lacking"
    [ -z "$old" ] || sed 's/^/  /' <<<"$old" >&2
    echo "Debian 12, Ubuntu 24.04 and newer have it all: there, run tools/setup.sh as root." >&2
    exit 1
  fi
}

main "$@"
