# Finds Python and makes the virtual environment. ./run, ./test and .ci/run source it, with $root
# set to the checkout.
#
#   use_environment    makes $venv whole; from the second start on there is nothing to do
#
# In $venv, towers.pins holds the requirements that are installed, and is written last: where it is
# missing, an installation was interrupted, and the next start makes the environment again.

home=${HOME:-/nonexistent}
# Folders of Pythons that are not on PATH.
python_folders="${PYENV_ROOT:-$home/.pyenv}/versions/*/bin
${CONDA_PREFIX:-/nonexistent}/bin
$home/*conda*/envs/*/bin
$home/*forge*/envs/*/bin
/opt/conda/envs/*/bin
$home/.local/share/uv/python/*/bin
/usr/bin
/usr/local/bin
/opt/python*/bin
/opt/python/*/bin"

say() { printf 'towers: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 2
}

# A shim may exist and exit 127, so a candidate counts only if it prints its version.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' </dev/null 2>/dev/null || :; }

# Whether $python has one of the $wanted versions. Sets version, and collects other versions for the
# message of a failure.
is_wanted() {
  version=$(version_of "$python")
  case " $wanted " in *" ${version:-none} "*) return 0 ;; esac
  case " $other_versions " in
    *" $version "*) ;;
    *) other_versions="${other_versions:+$other_versions }$version" ;;
  esac
  return 1
}

# find_python VERSION...: sets python and version to those of the first that runs, or to nothing.
find_python() {
  wanted=$*
  for number in "$@" 3 ''; do
    python=$(command -v "python$number") && is_wanted && return
  done
  newline='
'
  for number in "$@"; do
    IFS=$newline  # A folder's name may have spaces.
    for folder in $python_folders; do
      unset IFS
      python=$folder/python$number
      [ -x "$python" ] && is_wanted && return
    done
    unset IFS
  done
  python='' version=''
}

find_python37() {
  [ -n "${PYTHON37-}" ] || { find_python 3.7; return; }
  python=$PYTHON37 version=$(version_of "$PYTHON37")
  [ -n "$version" ] || fail "PYTHON37=$PYTHON37 does not run; name a Python 3.7, or unset it."
  [ "$version" = 3.7 ] || fail "PYTHON37=$PYTHON37 is Python $version; name a Python 3.7, or unset it."
}

# Sets target (tf1 or tf2), python, version and line, the sentence that describes the environment.
choose_target() {
  other_versions='' why_not=''
  case ${TOWERS_TARGET-} in
    '' | tf1)
      platform=$(uname -sm) python=''
      if [ "$platform" = 'Linux x86_64' ]; then
        why_not='no Python 3.7 was found, which TensorFlow 1.14 needs'
        find_python37
      else
        why_not="TensorFlow 1.14 for GPUs exists only for Linux x86_64, and this is $platform"
      fi
      if [ -n "$python" ]; then
        target=tf1 line='TensorFlow 1.14 on Python 3.7 (.venv-tf1)'
        return
      fi
      [ -z "${TOWERS_TARGET-}" ] || fail "TOWERS_TARGET=tf1, but $why_not. Install one, for example with \
'pyenv install 3.7' or 'conda create --name python37 python=3.7', or set PYTHON37=/path/to/python3.7, or set \
TOWERS_TARGET=tf2."
      ;;
    tf2) ;;
    *) fail "TOWERS_TARGET=$TOWERS_TARGET is neither tf1 (TensorFlow 1.14 on Python 3.7) nor tf2 (TensorFlow 2.21 on \
Python 3.10 to 3.13); correct or unset it." ;;
  esac
  find_python 3.13 3.12 3.11 3.10
  found='no Python'
  [ -z "$other_versions" ] || found="only Python $other_versions"
  [ -n "$python" ] || fail "$found was found. TensorFlow 2.21 needs Python 3.10, 3.11, 3.12 or 3.13, and TensorFlow 1.14, which has no wheel above Python 3.7, \
needs 3.7. Install one of these, for example with 'apt-get install python3 python3-venv'."
  target=tf2 line="TensorFlow 2.21 on Python $version (.venv-tf2)${why_not:+; $why_not}"
}

# Sets venv and requirements for $target.
name_files() {
  venv=$root/.venv-$target requirements=$target.txt
  case $target in tf1) download='450 MB' ;; tf2) download='700 MB' ;; *) download='30 MB' ;; esac
  # TensorFlow 2.x gets CUDA from packages of 2 GB, which only a machine with an NVIDIA driver needs.
  if [ "$target" = tf2 ] && { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; }; then
    requirements='tf2.txt tf2-cuda.txt' download='3 GB'
  fi
}

print_pins() (
  cd "$root/requirements" && cat $requirements
)

is_whole() { [ -x "$venv/bin/python" ] && print_pins | cmp -s - "$venv/towers.pins"; }

use_environment() {
  choose_target
  name_files
  say "$line"
  is_whole || make_environment
}

# Reads $target, $python, $version, $venv and $requirements.
make_environment() {
  [ -w "$root" ] || fail "cannot write to $root, the folder of the environment ${venv##*/}: make it writable, or copy \
it to a writable place."
  # Two starts must not install into one folder at once. The lock goes with the processes that hold
  # it, an installer that outlives this script included.
  exec 9<"$root/requirements/$target.txt"
  if command -v flock >/dev/null && ! flock -n 9; then
    say "another start is making $venv; waiting for it"
    flock 9
  fi
  is_whole || build_environment
  exec 9<&-
}

build_environment() {
  say "making $venv with $python: some minutes and about $download, once"
  if [ ! -f "$venv/towers.pins" ] || [ "$(version_of "$venv/bin/python")" != "$version" ]; then
    rm -rf "$venv"
    make_virtual_environment
  fi
  rm -f "$venv/towers.pins"
  # First, because pip below 20.3 does not know manylinux2014 wheels, and would compile for an hour.
  install -r pip.txt
  install $(printf -- '-r %s ' $requirements)
  print_pins >"$venv/towers.pins"
  say "$venv is ready"
}

# Debian's python3 has neither venv nor ensurepip without python3-venv; uv needs neither.
make_virtual_environment() {
  mkdir "$venv"
  "$python" -m venv "$venv" >"$venv/towers.log" 2>&1 ||
    uv venv --allow-existing --seed --python "$python" "$venv" >>"$venv/towers.log" 2>&1 || {
    say "$python cannot make a virtual environment, see $venv/towers.log. On Debian and Ubuntu: apt-get install \
python3-venv"
    exit 1
  }
}

# Takes only files whose hashes stand in requirements/: those on PyPI, for every platform. PIP_USER,
# which some machines set, would install outside the environment.
install() {
  (cd "$root/requirements" && PIP_USER=0 "$venv/bin/python" -m pip install --disable-pip-version-check \
    --require-hashes "$@" >"$venv/towers.log" 2>&1) || {
    tail -n 20 "$venv/towers.log" >&2
    say "pip could not install into $venv; see the reason above. It needs $download from the network, or from your own \
index or folder (PIP_INDEX_URL, PIP_FIND_LINKS), and room on the disk. The next start tries again."
    exit 1
  }
}
