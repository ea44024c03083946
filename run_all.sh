#!/usr/bin/env bash
# ./run_all.sh [options]   set up (first time) and run the notebooks; options: ./run_all.sh --help
# ./run_all.sh test [...]  set up (first time) and run the tests; the rest goes to pytest
# ./run_all.sh check DRAFT  set up (first time) and account for a draft's files
# ./run_all.sh new --draft DRAFT ...  set up (first time) and write a first case.toml from what there is
# ./run_all.sh lab [...]   set up (first time) and open JupyterLab
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
command=run
case "${1:-}" in "" | -*) ;; *) command="$1" && shift ;; esac
lists=("$root/pyproject.toml" "$root/constraints.txt")
if [ "$command" = test ]; then lists+=("$root/tests/oracles.txt" "$root/tests/oracles-nodeps.txt"); fi

stop() { echo "run_all.sh: $1" >&2 && exit 2; }

suffices() { # does this interpreter have all that the lists name, in a version that they allow?
  "$1" - "${lists[@]}" 2>/dev/null <<'PY'
import sys, tomllib; from importlib.metadata import version; from packaging.requirements import Requirement
project, _, *oracles = sys.argv[1:]
wanted = tomllib.load(open(project, "rb"))["project"]["dependencies"]
wanted += [text for path in oracles for line in open(path) if (text := line.split("#")[0].strip())]
sys.exit(any(version(r.name) not in r.specifier for r in map(Requirement, wanted)))
PY
}

make_venv() {
  if command -v uv >/dev/null; then uv venv --quiet --python ">=3.11" "$root/.venv" && return; fi
  for python in python3 python3.14 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    "$python" -m venv "$root/.venv" && return
    rm -rf "$root/.venv" && stop "$python -m venv failed; on Debian or Ubuntu: apt-get install python3-venv."
  done
  stop "Python 3.11 or newer is needed, and none was found."
}

install() {
  local with=("$python" -m pip) # an environment made by uv has no pip, and uv does not read pip's settings
  "$python" -c "import pip" 2>/dev/null || with=(env UV_FIND_LINKS="${UV_FIND_LINKS-${PIP_FIND_LINKS-}}" uv pip)
  VIRTUAL_ENV="$root/.venv" "${with[@]}" install --quiet -c "$root/constraints.txt" "$@" ||
    stop "packages could not be installed; is this machine online? Run it again to go on."
}

active="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}" python="$root/.venv/bin/python"
kind=run && [ "$command" = test ] && kind=test # what has to be installed: the same for all but the tests
stamp="$root/.venv/set-up-$kind" wanted="$(cat "${lists[@]}" | cksum)"
if [ -n "$active" ] && suffices "$active/bin/python"; then
  python="$active/bin/python"
elif [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "Setting up $root/.venv, a few minutes the first time ..."
  [ -x "$python" ] || (make_venv)
  if [ "$command" = test ]; then install -r "$root/tests/oracles.txt"; install --no-deps -r "$root/tests/oracles-nodeps.txt"; fi
  install -e "$root"
  echo "$wanted" >"$stamp"
fi
[[ "$command $* " =~ ^(check|new)\ |\ --case|\ --help ]] || "$python" "$root/data/smollm2/fetch_target.py" # the bundled case's
export JUPYTER_PREFER_ENV_PATH=1 PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
case "$command" in
  test) cd "$root" && exec "$python" -m pytest -q "$@" ;;
  lab) exec "$python" -m jupyterlab --KernelManager.transport_encryption=auto "$root/notebooks" "$@" ;;
  *) exec "$python" -m eagle3lib "$command" "$@" ;;
esac
