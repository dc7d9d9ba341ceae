"""Towers: explicit multi-GPU training for graph-mode TensorFlow.

  program = towers.Program(model, train=…, batch_size=…, optimizer=…)      the graph of N towers
  with program.session() as session: …                                     step by step
  towers.train(program, epochs=5)                                          or a whole run

`towers.training_graph` has the straight line that data takes through a program. A name's module is
imported when the name is first used, so `import towers` itself loads no TensorFlow.
"""

import glob
import importlib
import os
import re
import sys
import types
from typing import TYPE_CHECKING, Any, List

from towers.base import checkout
from towers.base.installed import __version__
from towers.base.output import write_line

# What the documentation describes, and where each name is at home.
_PUBLIC = {
    'Callback': 'towers.training.callbacks',
    'DataSet': 'towers.data.examples',
    'Every': 'towers.update.groups',
    'Examples': 'towers.data.examples',
    'KerasModel': 'towers.models.keras_model',
    'OutOfMemory': 'towers.process.run_error',
    'Program': 'towers.program',
    'RunError': 'towers.process.run_error',
    'Session': 'towers.session.session',
    'UsageError': 'towers.base.usage_error',
    'Weighted': 'towers.tower.losses',
    'Whole': 'towers.whole',
    'all_rows': 'towers.tower.all_towers',
    'all_sum': 'towers.tower.all_towers',
    'augmented': 'towers.data.augmented',
    'check': 'towers.checks.towers',
    'evaluate': 'towers.session.inference',
    'export': 'towers.session.predict_function',
    'fed': 'towers.tower.foreign.placeholders',
    'from_arrays': 'towers.data.arrays',
    'from_dataset': 'towers.data.datasets',
    'from_stream': 'towers.data.datasets',
    'from_tfrecords': 'towers.data.records',
    'init_from': 'towers.warm_start.matching',
    'main': 'towers.cli.script',
    'mixed': 'towers.data.mixed',
    'padded': 'towers.data.padding',
    'train': 'towers.training.train',
}
_PACKAGES = 'data', 'optimizers'  # Which import towers does not load either.
_OF_EXTRAS = {'check_inputs': 'towers.check_inputs', 'from_tfds': 'towers.data.from_tfds'}
__all__ = list(_PUBLIC)

if TYPE_CHECKING:  # The same for editors and type checkers; a test compares.
  from towers.base.usage_error import UsageError
  from towers.checks.towers import check
  from towers.cli.script import main
  from towers.data.arrays import from_arrays
  from towers.data.augmented import augmented
  from towers.data.datasets import from_dataset, from_stream
  from towers.data.examples import DataSet, Examples
  from towers.data.mixed import mixed
  from towers.data.padding import padded
  from towers.data.records import from_tfrecords
  from towers.models.keras_model import KerasModel
  from towers.process.run_error import OutOfMemory, RunError
  from towers.program import Program
  from towers.session.inference import evaluate
  from towers.session.predict_function import export
  from towers.session.session import Session
  from towers.tower.all_towers import all_rows, all_sum
  from towers.tower.foreign.placeholders import fed
  from towers.tower.losses import Weighted
  from towers.training.callbacks import Callback
  from towers.training.train import train
  from towers.update.groups import Every
  from towers.warm_start.matching import init_from
  from towers.whole import Whole


class _FormerName(types.ModuleType):
  """`tensorflow_v1`, from which programs once took TensorFlow; loads it with the first name."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)
    if 'towers.tensorflow_v1' not in sys.modules:
      write_line('tensorflow_v1 is a part of towers now: write import tensorflow.compat.v1 as tf',
                 sys.stderr)
    return getattr(importlib.import_module('towers.tensorflow_v1'), name)


checkout.find_packages(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.modules.setdefault('tensorflow_v1', _FormerName('tensorflow_v1'))
if 'tensorflow' in sys.modules:  # So that 2.x builds graphs from the program's next line on.
  importlib.import_module('towers.tensorflow_v1')


def _search(name: str) -> List[str]:
  """Returns the modules that make a name at their top, as those which once stood here."""
  from towers.base.json_files import read_text  # Not at each start.
  root, found = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), []
  for path in glob.glob(os.path.join(glob.escape(root), __name__, '**', '*.py'), recursive=True):
    if re.search(rf'^(class |def )?{re.escape(name)} *[(:=]', read_text(path), re.MULTILINE):
      module = re.sub(r'(.__init__)?\.py$', '', os.path.relpath(path, root))
      found.append(module.replace(os.sep, '.'))
  return found


def __getattr__(name: str) -> Any:
  if name in _PACKAGES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _OF_EXTRAS:
    return importlib.import_module('towers.extras').load_extra(_OF_EXTRAS[name])
  if name not in _PUBLIC:
    homes = [] if name.startswith('_') else _search(name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}' + (
        f': write from {homes[0]} import {name}' if len(homes) == 1 else ''))
  value = getattr(importlib.import_module(_PUBLIC[name]), name)
  globals()[name] = value
  return value


def __dir__() -> List[str]:
  return sorted({*globals(), *_PUBLIC, *_PACKAGES})
