"""Distributions: which TensorFlow is installed, read from the names of folders alone, and whether
it can be imported.

An import that cannot work ends in a riddle, after a second; one that takes the wrong of two
packages trains on the wrong device without a word. So what is there is looked at first.
"""

import os
import re
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from towers.base.usage_error import UsageError

_PINNED = 'or let ./run make an environment with the versions this project is tested with'
_TENSORFLOW_NAMES = ('tensorflow', 'tensorflow-gpu', 'tensorflow-cpu')
# The folder of an installed distribution: tensorflow_gpu-1.14.0.dist-info, or conda's
# tensorflow-1.14.0-py3.7.egg-info.
_METADATA_FOLDER = re.compile(
    r'(tensorflow(?:[-_](?:gpu|cpu))?|protobuf)-(\d[^-]*?)(?:-py[\d.]+)?\.(?:dist|egg)-info$')


class Distribution(NamedTuple):
  """An installed package as its metadata folder names it."""

  name: str
  version: str
  folder: str

  @property
  def numbers(self) -> Tuple[int, ...]:
    """The first two of its version, to compare by."""
    return tuple(int(number) for number in re.findall(r'\d+', self.version)[:2])


def find_distributions(folders: Sequence[str]) -> List[Distribution]:
  """TensorFlow's and protobuf's installed distributions, in the order of `folders`, as `sys.path`
  gives them.

  It lists folders and opens no file: about 1 ms, where importlib.metadata or pkg_resources take 30
  to 300 ms.
  """
  distributions = []
  for folder in dict.fromkeys(folder or os.curdir for folder in folders):
    try:
      names = os.listdir(folder)
    except OSError:  # sys.path may name zip files and folders that are not there.
      continue
    for name in sorted(names):
      match = _METADATA_FOLDER.match(name.lower())
      if match:
        distributions.append(Distribution(match.group(1).replace('_', '-'), match.group(2), folder))
  return distributions


def check_environment(python: Tuple[int, int], distributions: Sequence[Distribution],
                      tensorflow_is_there: bool) -> None:
  """Refuse what cannot work before TensorFlow is imported.

  Args:
    python: (major, minor) of the interpreter.
    distributions: what `find_distributions` found.
    tensorflow_is_there: whether `import tensorflow` would find anything; a build of one's own has
      no metadata.

  Raises:
    UsageError: for Python 3.8 or 3.9, no TensorFlow or one before 1.14, two that overwrote each
      other, or a protobuf that this TensorFlow cannot be imported with. The message names what was
      found and the fix.
  """
  if python in ((3, 8), (3, 9)):
    raise UsageError(
        'this is Python %d.%d, which towers does not run on: TensorFlow 1.14 has no wheel above '
        'Python 3.7, and '
        'TensorFlow 2.21 needs Python 3.10 to 3.13. Use one of those, %s.' % (python + (_PINNED,)))
  if not tensorflow_is_there:
    raise UsageError(
        f"TensorFlow is not installed in {sys.prefix}: install "
        f"{'tensorflow-gpu==1.14.0' if python == (3, 7) else 'tensorflow'}, {_PINNED}.")
  _refuse_two_tensorflows([found for found in distributions if found.name in _TENSORFLOW_NAMES])
  tensorflow = find_tensorflow(distributions)
  protobuf = _first(distributions, ('protobuf',))
  if tensorflow and tensorflow.numbers < (1, 14):
    raise UsageError(
        f'{tensorflow.name} {tensorflow.version} in {tensorflow.folder} is too old: towers needs '
        f'1.14 or later. Install tensorflow-gpu==1.14.0, {_PINNED}.')
  if (python == (3, 7) and protobuf and protobuf.numbers >= (3, 21)
      and os.environ.get('PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION') != 'python'):
    raise UsageError(
        f'protobuf {protobuf.version} in {protobuf.folder} cannot be imported by a TensorFlow for '
        f'Python 3.7, which needs 3.20.3 or earlier: pip install protobuf==3.20.3, {_PINNED}.')


def _refuse_two_tensorflows(tensorflows: Sequence[Distribution]) -> None:
  by_folder: Dict[str, List[Distribution]] = {}
  for found in tensorflows:
    by_folder.setdefault(found.folder, []).append(found)
  for folder, pair in by_folder.items():
    # From 2.1 on the packages of one version hold the same files, and nothing is lost.
    harmless = len({found.version for found in pair}) == 1 and pair[0].numbers >= (2, 1)
    if len({found.name for found in pair}) > 1 and not harmless:
      raise UsageError(
          '{} are both installed in {}. They write the same files, so the GPU build may have lost '
          'to the other '
          'without a word: pip uninstall --yes {}, then install the one you want, {}.'.format(
              ' and '.join('{} {}'.format(*found[:2]) for found in pair), folder,
             ' '.join(found.name for found in pair), _PINNED))


def find_tensorflow(distributions: Sequence[Distribution]) -> Optional[Distribution]:
  """Returns the TensorFlow that an import would take, or None."""
  return _first(distributions, _TENSORFLOW_NAMES)


def _first(distributions: Sequence[Distribution], names: Sequence[str]) -> Optional[Distribution]:
  """The one that an import would take, since the first folder of `sys.path` wins."""
  return next((found for found in distributions if found.name in names), None)
