"""What is installed: our version, and which TensorFlow, by the names of folders alone.

An import that cannot work ends in a riddle after a second, and an import of the wrong one of two
packages silently trains on the wrong device. So this check comes first.
"""

import os
import re
import sys
import tempfile
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from towers.base.usage_error import UsageError

__version__ = '0.1.0'

_PINNED = 'or let ./run make an environment with the versions this project is tested with'
_TENSORFLOW_NAMES = ('tensorflow', 'tensorflow-gpu', 'tensorflow-cpu', 'nvidia-tensorflow')
# The folder of an installed distribution: tensorflow_gpu-1.14.0.dist-info, or conda's
# tensorflow-1.14.0-py3.7.egg-info.
_METADATA_FOLDER = re.compile(
    r'(tensorflow(?:[-_](?:gpu|cpu))?|nvidia[-_]tensorflow|protobuf)-(\d[^-]*?)(?:-py[\d.]+)?'
    r'\.(?:dist|egg)-info$')


class Distribution(NamedTuple):
  """An installed package as its metadata folder names it."""

  name: str
  version: str
  folder: str

  @property
  def numbers(self) -> Tuple[int, ...]:
    """The major and minor version, to compare by."""
    return tuple(int(number) for number in re.findall(r'\d+', self.version)[:2])


def find_distributions(folders: Sequence[str]) -> List[Distribution]:
  """Returns the distributions of TensorFlow and protobuf in `folders`, such as `sys.path`.

  It opens no file: about 1 ms, where importlib.metadata or pkg_resources take 30 to 300 ms.
  """
  distributions = []
  for folder in dict.fromkeys(folder or os.curdir for folder in folders):
    try:
      names = os.listdir(folder)
    except OSError:  # sys.path may name zip files and missing folders.
      continue
    for name in sorted(names):
      match = _METADATA_FOLDER.match(name.lower())
      if match:
        distributions.append(Distribution(match.group(1).replace('_', '-'), match.group(2), folder))
  return distributions


def check_environment(python: Tuple[int, int], distributions: Sequence[Distribution],
                      tensorflow_is_there: bool) -> str:
  """Refuses, before TensorFlow is imported, an environment in which the import cannot work.

  `python` is its (major, minor). A TensorFlow that one has built oneself has no distribution, so
  `tensorflow_is_there` says whether there is a module. Returns a warning of NVIDIA's TensorFlow
  1.15, which is not tested; or ''.
  """
  tensorflow = find_tensorflow(distributions)
  is_1_15 = tensorflow is not None and tensorflow.numbers == (1, 15)
  if python in ((3, 8), (3, 9)) and not is_1_15:
    major, minor = python
    raise UsageError(
        f'this is Python {major}.{minor}, which towers does not run on: TensorFlow 1.14 has no '
        'wheel above Python 3.7, and TensorFlow 2.21 needs Python 3.10 to 3.13. Use one of those, '
        f'{_PINNED}.')
  if not tensorflow_is_there:
    wanted = 'tensorflow-gpu==1.14.0' if python == (3, 7) else 'tensorflow'
    raise UsageError(f'TensorFlow is not installed in {sys.prefix}: install {wanted}, {_PINNED}.')

  try:
    tempfile.gettempdir()  # The import asks for it too.
  except FileNotFoundError as error:
    raise UsageError(f'{error.strerror}: make room in one of them, or set TMPDIR to a folder that '
                     'can be written.') from None

  _refuse_two_tensorflows([found for found in distributions if found.name in _TENSORFLOW_NAMES])

  protobuf = next((found for found in distributions if found.name == 'protobuf'), None)
  if tensorflow and tensorflow.numbers < (1, 14):
    raise UsageError(
        f'{tensorflow.name} {tensorflow.version} in {tensorflow.folder} is too old: towers needs '
        f'1.14 or later. Install tensorflow-gpu==1.14.0, {_PINNED}.')
  if (python == (3, 7) and protobuf and protobuf.numbers >= (3, 21)
      and os.environ.get('PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION') != 'python'):
    raise UsageError(
        f'protobuf {protobuf.version} in {protobuf.folder} cannot be imported by a TensorFlow for '
        f'Python 3.7, which needs 3.20.3 or earlier: pip install protobuf==3.20.3, {_PINNED}.')
  if tensorflow and is_1_15:
    return (f'WARNING: {tensorflow.name} {tensorflow.version} is not tested; towers is with 1.14 '
            'and 2.21')
  return ''


def _refuse_two_tensorflows(tensorflows: Sequence[Distribution]) -> None:
  by_folder: Dict[str, List[Distribution]] = {}
  for found in tensorflows:
    by_folder.setdefault(found.folder, []).append(found)
  for folder, pair in by_folder.items():
    # From 2.1 on the packages of one version hold the same files.
    harmless = len({found.version for found in pair}) == 1 and pair[0].numbers >= (2, 1)
    if len({found.name for found in pair}) > 1 and not harmless:
      both = ' and '.join(f'{found.name} {found.version}' for found in pair)
      names = ' '.join(found.name for found in pair)
      raise UsageError(
          f'{both} are both installed in {folder}. They write the same files, so the other build '
          f'may have overwritten the GPU build: pip uninstall --yes {names}, then install the one '
          f'you want, {_PINNED}.')


def find_tensorflow(distributions: Sequence[Distribution]) -> Optional[Distribution]:
  """Returns the TensorFlow that an import would take, of the first folder; or None."""
  return next((found for found in distributions if found.name in _TENSORFLOW_NAMES), None)
