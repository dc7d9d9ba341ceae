"""Config: every setting of a run, each written down once: its default, its help and what it may be.

Groups stand in the order in which data runs through the program; the command line is made from
these fields (see `flags`). Nothing here imports TensorFlow, so a mistake is told before anything
expensive starts.
"""

import dataclasses
import math
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from towers.base.local_path import check_local_path
from towers.base.usage_error import UsageError
from towers.data import DATA_SETS
from towers.data.augment import KINDS
from towers.data.bad_records import POLICIES
from towers.training.settings.cluster import Cluster
from towers.training.settings.zoo import load_zoo

# What the chief alone writes.
_CHIEFS = ('result_file', 'summary_dir', 'report', 'trace_steps', 'export_dir')
# No viewer opens many more.
_MOST_TRACED = 100


class Path(str):
  """The kind of a setting that names a file or folder."""


class Text(str):
  """The kind of a setting of free text that names neither, such as '2epochs'."""


class Setting(NamedTuple):
  """What the command line must know of a field.

  Attributes:
    group: the heading it stands under in the help.
    help: one line.
    kind: int, float, bool, list for numbers with commas between them, str for one of `choices`,
      `Path` or `Text`.
    choices: what a str may be.
  """
  group: str
  help: str
  kind: type
  choices: Tuple[str, ...] = ()


_GROUPS: List[str] = ['']


def _group(name: str) -> None:
  _GROUPS[0] = name


def _setting(kind: type, default: Any, help: str, choices: Any = ()) -> Any:
  if (kind is str) != bool(choices):
    # Plain str does not say whether it is a path, which must be checked.
    raise TypeError(f"The setting '{help}' needs choices, or the kind Path or Text.")
  return dataclasses.field(
      default=default, metadata={'setting': Setting(_GROUPS[0], help, kind, tuple(choices))})


@dataclasses.dataclass(frozen=True)
class Config:
  """A run's settings; made whole and valid, or not at all.

  Raises:
    UsageError: a value that cannot be, or two that do not go together; names the flag, the value
      and the fix.
  """
  _group('data')
  data: str = _setting(str, 'sample', 'data set', DATA_SETS)
  data_dir: Optional[str] = _setting(Path, None,
      'folder of its files, for data sets that have some')
  image_size: Optional[int] = _setting(int, None,
      'pixels of images, tfrecord; default: the data\'s own, or 224')
  num_classes: Optional[int] = _setting(int, None,
      'of tfrecord, npy; default: the data\'s own, or 1000')
  first_label: Optional[int] = _setting(int, None,
      'of tfrecord, becomes 0; default: the data\'s own, or 1')
  max_image_pixels: int = _setting(int, 64000000, 'images of more are bad records')
  on_bad_record: str = _setting(str, 'fail', 'end the run at a damaged record, or log it', POLICIES)
  augment: str = _setting(str, 'none', 'pad, crop, mirror; random resized crop, mirror', KINDS)
  batch_size: int = _setting(int, 64, 'global batch: examples of one step, over all towers')
  shuffle: bool = _setting(bool, True, 'shuffle the training split anew in every epoch')
  accumulate: int = _setting(int, 1, 'session runs that a global batch is taken in, to save memory')
  drop_remainder: bool = _setting(bool, False,
      'leave out the last, smaller batch of every training epoch')

  _group('inputs')
  input_mode: str = _setting(str, 'split', 'one batch to split; get_next per tower; iterator per '
                                           'shard',
                             ('split', 'next', 'shard'))
  staging_depth: int = _setting(int, 1, 'batches that wait on each tower\'s device: 0, 1 or 2')
  input_threads: Optional[int] = _setting(int, None,
      'examples parsed at a time; default: one on each core')
  input_only: bool = _setting(bool, False, 'measure the input modes without towers, and train '
                                           'nothing')

  _group('towers')
  num_gpus: Optional[int] = _setting(int, None,
      'towers, one per GPU; default: all GPUs, or 2 virtual CPU devices')
  device: str = _setting(str, 'auto', 'auto: GPUs when there are any, else virtual CPU devices',
                         ('auto', 'gpu', 'cpu'))
  model: str = _setting(str, 'convnet', 'what each tower computes', load_zoo().MODELS)
  data_format: str = _setting(str, 'NHWC', 'of the layers in the model; NCHW is for GPUs',
                              load_zoo().DATA_FORMATS)
  tower_build: str = _setting(str, 'auto', 'call the model for each tower, or clone the first; '
                                           'auto: clone deep models',
                              ('reuse', 'clone', 'auto'))
  graph_rewriter: str = _setting(str, 'auto',
      'TensorFlow rewrites the graph before it runs; auto: on GPUs, or for XLA',
                                 ('auto', 'on', 'off'))
  xla: str = _setting(str, 'auto', 'compile what can be; auto: as TF_XLA_FLAGS says, else not', (
      'auto', 'on', 'off'))
  inter_threads: Optional[int] = _setting(int, None,
      'ops at a time; default: one on each core, or tower if more')
  intra_threads: Optional[int] = _setting(int, None,
      'threads inside of one op; default: the cores of its tower')
  variables: str = _setting(str, 'host', 'where variables stand; replicated: a copy on every tower',
                            ('host', 'first', 'balanced', 'replicated'))
  collective: str = _setting(str, 'auto', 'sums gradients of replicated variables; auto: nccl on '
                                          'GPUs, else ring',
                             ('auto', 'ring', 'nccl'))
  fusion_megabytes: float = _setting(float, 4.0,
      'of gradients that one collective sums; 0: each by itself')
  precision: str = _setting(str, 'float32', 'of what towers compute; mixed: half, on float32 '
                                            'weights',
                            ('float32', 'mixed'))
  loss_scale: Optional[float] = _setting(float, None,
      'of mixed precision; default: adapted, for bfloat16 1')
  batch_norm: str = _setting(str, 'first', 'whose moments normalise and move the averages', (
      'first', 'mean', 'sync'))

  _group('workers, which TF_CONFIG names')
  start_seconds: float = _setting(float, 300.0, 'to wait for all workers at the start')
  worker_seconds: float = _setting(float, 20.0,
      'without an answer of another worker, after which the run ends')

  _group('weight update')
  optimizer: str = _setting(str, 'momentum', 'optimizer', ('sgd', 'momentum', 'adam'))
  learning_rate: Optional[float] = _setting(float, None, 'peak rate; default: 0.05, for adam 0.001')
  momentum: float = _setting(float, 0.9, 'of the momentum optimizer')
  clip_norm: Optional[float] = _setting(float, None,
      'largest global norm of the averaged gradients; default: any')
  weight_decay: float = _setting(float, 0.0, 'times each matrix or kernel is added to its gradient')
  schedule: str = _setting(str, 'cosine', 'of the rate, counted in examples',
                           ('constant', 'piecewise', 'exponential', 'cosine'))
  warmup_epochs: float = _setting(float, 0.0, 'epochs over which the rate rises from 0')
  decay_epochs: Tuple[float, ...] = _setting(list, (), 'epochs at which the rate falls, as 30,60')
  decay_rate: float = _setting(float, 0.1, 'factor of each fall of the rate')

  _group('loop')
  epochs: Optional[float] = _setting(float, None, 'passes over the training split; default: 5')
  steps: Optional[int] = _setting(int, None, 'weight updates, instead of epochs')
  validation: str = _setting(str, 'switch', 'by all towers in turn; by the last tower meanwhile; '
                                            'never',
                             ('switch', 'tower', 'none'))
  validate_every: str = _setting(Text, '1epoch', 'between validations, as 500steps or 2epochs')
  checkpoint_dir: Optional[str] = _setting(Path, None,
      'folder to save to, and to resume from when it has a checkpoint')
  checkpoint_every: str = _setting(Text, '1epoch',
      'between checkpoints, as 500steps, 2epochs or 600seconds')
  keep_checkpoints: int = _setting(int, 5, 'newest checkpoints to keep, besides the best one')
  best_metric: str = _setting(Text, 'loss', 'of validation; the best is the largest, or the '
                                            'smallest of a loss or '
                              'error')
  early_stopping: Optional[int] = _setting(int, None,
      'validations in a row without a new best one, to stop after')
  on_full_disk: str = _setting(str, 'warn', 'when a checkpoint cannot be written', ('warn', 'stop'))
  on_nan: str = _setting(str, 'stop', 'when loss or gradients are not finite', ('stop', 'skip',
      'rollback'))
  stall_seconds: float = _setting(float, 300.0,
      'without any progress, after which the run ends and tells why')
  seed: int = _setting(int, 0, 'of initial weights, shuffling and dropout')
  deterministic: bool = _setting(bool, False,
      'only kernels that repeat to the bit, at some cost in speed')
  autotune: bool = _setting(bool, False, 'find the fastest settings for this run in trials, and '
                                         'train with them')
  check: bool = _setting(bool, False, 'compare the towers with one tower, on CPUs unless '
                                      'device=gpu; train nothing')
  result_file: Optional[str] = _setting(Path, None,
      'file to write the result to, as one JSON object')

  _group('to look at')
  quiet: bool = _setting(bool, False, 'no progress line; set-up, validation, warnings and the '
                                      'result are told')
  summary_dir: Optional[str] = _setting(Path, None,
      'folder of curves, text and graph for TensorBoard')
  report: Optional[str] = _setting(Path, None,
      'page of HTML to write: curves, times, devices, settings')
  summary_every: str = _setting(Text, '0.1epochs',
      'between two points of the curves, as 500steps or 0.1epochs')
  trace_steps: Optional[str] = _setting(Text, None, 'steps whose every op is traced, as 10:12')
  trace_file: str = _setting(Path, 'trace.json',
      'file of the trace, for chrome://tracing or Perfetto')

  _group('to use')
  doctor: bool = _setting(bool, False, 'look at this machine, say what does not fit, and train '
                                       'nothing')
  export_dir: Optional[str] = _setting(Path, None, 'folder for the best weights as a SavedModel')
  predict: Optional[str] = _setting(Path, None,
      '.npy file or folder of images to classify, instead of training')

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      self._check_type(field.name, getattr(self, field.name), field.metadata['setting'])
    self._at_least(1, 'batch_size', 'accumulate', 'steps', 'num_gpus', 'keep_checkpoints',
        'early_stopping',
                   'image_size', 'input_threads', 'inter_threads', 'intra_threads',
                   'max_image_pixels')
    self._at_least(2, 'num_classes')
    self._at_least(0, 'fusion_megabytes', 'momentum', 'weight_decay', 'warmup_epochs', 'seed',
        'first_label')
    self._above_zero('loss_scale', 'learning_rate', 'epochs', 'decay_rate', 'clip_norm',
        'stall_seconds',
                     'start_seconds', 'worker_seconds')
    _refuse(self.staging_depth not in (0, 1, 2),
        f'staging_depth={self.staging_depth}: choose 0, 1 or 2.')
    _refuse(self.momentum >= 1, f'momentum={self.momentum:g}: it must be below 1, or the weights '
                                'never settle.')
    _refuse(self.steps is not None and self.epochs is not None,
            f'steps={self.steps} and epochs={self.epochs} both say how long to train: give one of '
            'them.')
    _refuse(self.schedule in ('piecewise', 'exponential') and not self.decay_epochs,
            f'schedule={self.schedule} needs decay_epochs, such as decay_epochs=3.')
    _refuse(self.schedule == 'exponential' and len(self.decay_epochs) > 1,
            f'schedule=exponential takes one number of decay_epochs, not {len(self.decay_epochs)}.')
    _refuse(
        self.schedule in ('constant', 'cosine') and bool(self.decay_epochs),
        'decay_epochs={} has no meaning with schedule={}: use schedule=piecewise or '
        'exponential.'.format(','.join(f'{epoch:g}' for epoch in self.decay_epochs), self.schedule))
    _refuse(
        any(epoch <= 0 for epoch in self.decay_epochs) or
        sorted(set(self.decay_epochs)) != list(self.decay_epochs),
        'decay_epochs={}: they must be above 0 and rise.'.format(','.join(
            f'{epoch:g}' for epoch in self.decay_epochs)))
    checks_on_cpus = self.check and self.device != 'gpu'
    _refuse(self.data_format == 'NCHW' and (checks_on_cpus or self.device == 'cpu'),
            "data_format=NCHW with "
            f"{'check, which runs on CPU devices' if checks_on_cpus else 'device=cpu'}: this "
            "format is for GPUs; use data_format=NHWC, whose weights and checkpoints are the "
            "same.")
    for name in ('validate_every', 'checkpoint_every', 'summary_every'):
      _, unit = parse_interval(name, getattr(self, name))
      _refuse(name != 'checkpoint_every' and unit == 'seconds',
              f'{name}={getattr(self, name)}: say how many steps or epochs, since runs shall '
              'repeat.')
    if self.trace_steps is not None:
      parse_trace_steps(self.trace_steps)
    _refuse(self.loss_scale is not None and self.precision != 'mixed',
            f'loss_scale={self.loss_scale} has no meaning with precision={self.precision}: use '
            'precision=mixed.')
    _refuse(self.autotune and (self.check or self.input_only),
            f"autotune with {'check' if self.check else 'input_only'}, which trains nothing: give "
            "one of them.")
    _refuse(self.collective == 'nccl' and self.device == 'cpu',
            'collective=nccl with device=cpu: it runs on GPUs alone; use collective=ring.')
    _refuse(self.on_nan == 'rollback' and self.checkpoint_dir is None,
            'on_nan=rollback needs a checkpoint_dir to go back to.')
    _refuse(self.export_dir is not None and self.checkpoint_dir is None and self.predict is None,
            f'export_dir={self.export_dir} needs a checkpoint_dir: the best checkpoint is what is '
            'exported.')
    _refuse(self.predict is not None and (self.export_dir is None) == (self.checkpoint_dir is None),
            f'predict={self.predict} needs either checkpoint_dir, a run\'s folder, or export_dir, '
            'that of an exported model.')
    _refuse(self.early_stopping is not None and self.validation == 'none',
            f'early_stopping={self.early_stopping} needs validation, which is none: use '
            'validation=switch.')

  def _check_type(self, name: str, value: Any, setting: Setting) -> None:
    if value is None:
      return
    numbers = value if setting.kind is list else [value] if setting.kind is float else []
    for number in numbers:
      _refuse(
          isinstance(number, bool) or not isinstance(number, (int, float)) or
          not math.isfinite(number), f'{name}={number}: it must be a finite number.')
    _refuse(setting.kind is int and (isinstance(value, bool) or not isinstance(value, int)),
            f'{name}={value}: it must be a whole number.')
    if setting.kind is Path:
      _refuse(not isinstance(value, (str, os.PathLike)), f'{name}={value}: it must be a path.')
      check_local_path(name, value)
    _refuse(bool(setting.choices) and value not in setting.choices,
            f"{name}={value}: choose one of {', '.join(setting.choices)}.")

  def _at_least(self, least: int, *names: str) -> None:
    for name in names:
      value = getattr(self, name)
      _refuse(value is not None and value < least, f'{name}={value}: it must be at least {least}.')

  def _above_zero(self, *names: str) -> None:
    for name in names:
      value = getattr(self, name)
      _refuse(value is not None and value <= 0, f'{name}={value}: it must be above 0.')

  def for_worker(self, cluster: Cluster) -> 'Config':
    """Returns what one process of a cluster is to do: to save and to tell of a run is the chief's.

    Raises:
      UsageError: what is done by one worker alone.
    """
    for name in ('autotune', 'check', 'input_only'):
      _refuse(
          cluster.trains_together and getattr(self, name),
          f"{name} is done by one worker alone, and TF_CONFIG names {len(cluster.addresses)}: "
          "unset TF_CONFIG for "
          f"it{', and give all workers the flags that it prints' if name == 'autotune' else ''}.")
    if cluster.is_chief:
      return self
    changes: Dict[str, Any] = dict.fromkeys(_CHIEFS)
    if cluster.is_evaluator:
      changes.update(validation='switch', summary_dir=self.summary_dir)
    return dataclasses.replace(self, quiet=True, **changes)

  def count_steps(self, steps_per_epoch: int) -> int:
    """Returns the weight updates of the whole run."""
    if self.steps is not None:
      return self.steps
    return max(1, round((5 if self.epochs is None else self.epochs) * steps_per_epoch))

  @property
  def keeps_curves(self) -> bool:
    """Whether a step is measured now and then."""
    return self.summary_dir is not None or self.report is not None

  def peak_learning_rate(self) -> float:
    """Returns the rate after warm-up and before any decay."""
    if self.learning_rate is not None:
      return self.learning_rate
    return 0.001 if self.optimizer == 'adam' else 0.05


def parse_interval(name: str, text: str) -> Tuple[float, str]:
  """Returns (2.0, 'epochs') from '2epochs'; a number alone counts steps.

  Raises:
    UsageError: text that is no positive number of steps, epochs or seconds.
  """
  match = re.match(r'^(\d+(?:\.\d+)?) ?(?:(step|epoch|second)s?)?$', text)
  unit = match and (match.group(2) or 'step')
  if not match or float(match.group(1)) == 0 or (unit == 'step' and '.' in match.group(1)):
    raise UsageError(f'{name}={text}: say how many, as 500steps, 2epochs or, for checkpoints, '
                     '600seconds.')
  return float(match.group(1)), f'{unit}s'


def count_interval(name: str, text: str, steps_per_epoch: int) -> int:
  """Returns the steps, at least 1, of an interval such as '500steps' or '2epochs'."""
  number, unit = parse_interval(name, text)
  return max(1, round(number * (steps_per_epoch if unit == 'epochs' else 1)))


def parse_trace_steps(text: str) -> Tuple[int, int]:
  """Returns (10, 12) from '10:12', or (10, 10) from '10'.

  Raises:
    UsageError: text that is no such range, or one of too many steps.
  """
  match = re.match(r'^(\d+)(?::(\d+))?$', text)
  first = int(match.group(1)) if match else 0
  last = int(match.group(2) or first) if match else 0
  if not 1 <= first <= last or last - first >= _MOST_TRACED:
    raise UsageError(f'trace_steps={text}: say the first and the last step to trace, as 10:12, '
                     f'from 1 on and at most {_MOST_TRACED}.')
  return first, last


def _refuse(is_wrong: bool, message: str) -> None:
  if is_wrong:
    raise UsageError(message)
