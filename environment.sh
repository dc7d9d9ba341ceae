# Finds Python and makes the virtual environment. ./run, ./test and .ci/run source it, with $root
# set to the checkout.
#
#   use_environment    makes $venv whole; from the second start on there is nothing to do
#
# Our files in every virtual environment:
#   towers.building    exists during an installation, so that an interrupted one is not used
#   towers.pins        the installed requirements: if they equal today's, the environment is whole
#   towers.line        the sentence that describes it
#   towers.why_not     for tf2: why it was chosen over tf1; absent if TOWERS_TARGET chose it

home=${HOME:-/nonexistent} conda=${CONDA_PREFIX:-/nonexistent}
# Folders of Pythons that are not on PATH.
python_folders="${PYENV_ROOT:-$home/.pyenv}/versions/*/bin
$home/.pyenv/versions/*/bin
$conda/bin
$conda/envs/*/bin
$home/.conda/envs/*/bin
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
  case $version in
    3.7) ;;
    '') fail "PYTHON37=$PYTHON37 does not run; name a Python 3.7, or unset it." ;;
    *) fail "PYTHON37=$PYTHON37 is Python $version; name a Python 3.7, or unset it." ;;
  esac
}

# Sets target (tf1 or tf2), python, version, line and why_not.
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
        target=tf1 line="TensorFlow 1.14 on Python 3.7 (.venv-tf1)" why_not=''
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
  if [ -z "$python" ]; then
    found='no Python was found'
    [ -z "$other_versions" ] || found="only Python $other_versions was found"
    fail "$found. TensorFlow 2.21 needs Python 3.10, 3.11, 3.12 or 3.13, and TensorFlow 1.14, which has no wheel \
above Python 3.7, needs 3.7. Install one of these, for example with 'apt-get install python3 python3-venv'."
  fi
  target=tf2 line="TensorFlow 2.21 on Python $version (.venv-tf2)"
}

# Sets venv and requirements for $target.
name_files() {
  venv=$root/.venv-$target requirements=$target.txt
  # TensorFlow 2.x gets CUDA from packages of 2 GB, which only a machine with an NVIDIA driver needs.
  if [ "$target" = tf2 ] && { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; }; then
    requirements='tf2.txt tf2-cuda.txt'
  fi
}

print_pins() (
  cd "$root/requirements" && cat $requirements 2>/dev/null
)

is_whole() {
  [ ! -e "$venv/towers.building" ] && [ -x "$venv/bin/python" ] && [ -f "$venv/towers.pins" ] &&
    print_pins | cmp -s - "$venv/towers.pins"
}

# Sets target and venv to an environment of an earlier start, without looking for Python.
find_whole_environment() {
  for target in ${TOWERS_TARGET:-tf1 tf2}; do
    name_files
    is_whole || continue
    why_not=''
    if [ -z "${TOWERS_TARGET-}" ] && [ "$target" = tf2 ]; then
      [ -z "${PYTHON37-}" ] && [ -f "$venv/towers.why_not" ] || continue
      read -r why_not <"$venv/towers.why_not"
    fi
    read -r line <"$venv/towers.line"
    return 0
  done
  return 1
}

use_environment() {
  find_whole_environment || {
    choose_target
    name_files
  }
  say "$line${why_not:+; $why_not}"
  is_whole || make_environment
  [ -z "$why_not" ] || [ -f "$venv/towers.why_not" ] || printf '%s\n' "$why_not" >"$venv/towers.why_not"
}

# Reads $target, $python, $version, $line, $venv and $requirements.
make_environment() {
  lock=$venv.lock
  take_lock
  # In some shells a signal runs the EXIT handler only if it has its own handler.
  trap 'rm -rf "$lock"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  is_whole || build_environment
  rm -rf "$lock"
  trap - EXIT HUP INT TERM
}

# Two starts must not install into one folder at once. A lock whose process has ended is taken over.
take_lock() {
  waited_seconds=0
  until mkdir "$lock" 2>/dev/null; do
    [ -w "$root" ] || fail "cannot write to $root, the folder of the environment ${venv##*/}: make it writable, or \
copy it to a writable place."
    owner_process='' owner_host=''
    [ ! -f "$lock/owner" ] || read -r owner_process owner_host <"$lock/owner" || :
    if owner_is_gone && mkdir "$lock/heir" 2>/dev/null; then
      # The first start that makes this folder takes the lock; its owner may have changed by then.
      read -r owner_process owner_host <"$lock/owner" 2>/dev/null || :
      if owner_is_gone; then
        write_owner
        rmdir "$lock/heir"
        return
      fi
      rmdir "$lock/heir"
    fi
    [ "$waited_seconds" -ne 0 ] || say "another start${owner_process:+ (process $owner_process on $owner_host)} is \
making $venv; waiting for it. If there is none, remove $lock."
    sleep 1
    waited_seconds=$((waited_seconds + 1))
  done
  write_owner
}

write_owner() { echo "$$ $(uname -n)" >"$lock/owner"; }

owner_is_gone() {
  # Between mkdir and write_owner the lock has no owner for a moment; after ten seconds it has none.
  [ -n "$owner_process" ] || { [ "$waited_seconds" -ge 10 ]; return; }
  [ "$owner_host" = "$(uname -n)" ] && ! kill -0 "$owner_process" 2>/dev/null
}

build_environment() {
  say "making $venv with $python: some minutes and about $(size_of_download), once"
  if [ -e "$venv/towers.building" ] || [ "$(version_of "$venv/bin/python")" != "$version" ]; then
    make_virtual_environment || {
      say "$python cannot make a virtual environment: it has neither venv with ensurepip nor pip, and neither uv nor \
virtualenv is there or knows it. On Debian and Ubuntu: apt-get install python3-venv"
      exit 1
    }
  fi
  : >"$venv/towers.building"
  # First, because pip below 20.3 does not know manylinux2014 wheels, and would compile for an hour.
  install -r pip.txt
  install $(printf -- '-r %s ' $requirements)
  "$venv/bin/python" -m pip check >&2 || {
    say "the packages in $venv do not fit together, see above; remove it, and the next start makes it again"
    exit 1
  }
  printf '%s\n' "$line" >"$venv/towers.line"
  print_pins >"$venv/towers.pins"
  rm "$venv/towers.building"
  say "$venv is ready"
}

size_of_download() {
  case $requirements in
    tf1.txt) echo '450 MB' ;;
    tf2.txt) echo '700 MB' ;;
    tf2*cuda*) echo '3 GB' ;;
    *) echo '30 MB' ;;
  esac
}

# Takes only files whose hashes stand in requirements/: those on PyPI, for every platform. PIP_USER,
# which some machines set, would install outside the environment.
install() {
  (cd "$root/requirements" && PIP_USER=0 "$venv/bin/python" -m pip install --disable-pip-version-check \
    --require-hashes "$@" >&2) || {
    say "pip could not install into $venv; see the reason above. It needs $(size_of_download) from the network, or from \
your own index or folder (PIP_INDEX_URL, PIP_FIND_LINKS), and room on the disk. The next start tries again."
    exit 1
  }
}

# From the way with the fewest needs: Debian's python3 lacks ensurepip and venv without python3-venv.
make_virtual_environment() {
  for way in venv uv virtualenv downloaded_virtualenv; do
    make_empty_folder
    "make_with_$way" >"$venv/towers.log" 2>&1 && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  done
  return 1
}

make_with_venv() { "$python" -m venv "$venv"; }
make_with_uv() { uv venv --allow-existing --seed --python "$python" "$venv"; }
make_with_virtualenv() { virtualenv --python "$python" "$venv"; }
make_with_downloaded_virtualenv() {
  "$python" -m pip install --target "$venv/towers.virtualenv" --require-hashes \
    -r "$root/requirements/virtualenv.txt" &&
    PYTHONPATH="$venv/towers.virtualenv" "$python" -m virtualenv "$venv" &&
    rm -rf "$venv/towers.virtualenv"
}

make_empty_folder() {
  if [ -e "$venv" ]; then
    # Moved first: the rest of an interrupted rm must not pass for an environment.
    rm -rf "$venv.old"
    mv "$venv" "$venv.old"
    rm -rf "$venv.old"
  fi
  mkdir "$venv"
  : >"$venv/towers.building"
}
