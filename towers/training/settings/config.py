"""Config: every setting of a run, with its default, its help and its valid values in one place.

Groups follow the data through the program, and the command line is made from these fields (see
`flags`). Nothing here imports TensorFlow, so a mistake shows before anything expensive starts.
"""

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from towers.base.usage_error import UsageError
from towers.data import DATA_SETS
from towers.data.augment import KINDS
from towers.data.bad_records import POLICIES
from towers.models import DATA_FORMATS, MODELS
from towers.placement.cluster import Cluster
from towers.training.settings import intervals
from towers.training.settings.checks import check_config
from towers.training.settings.setting import Count, Function, Path, Setting, Text

# Peak learning rates of optimizers with others than most.
_PEAKS = {'adam': 0.001, 'adamw': 0.001, 'lamb': 0.001, 'rmsprop': 0.01, 'lars': 1.0}
# Outputs that only the chief writes.
_CHIEFS = ('result_file', 'summary_dir', 'report', 'trace_steps', 'export_dir')
# Settings that may differ between workers: paths on their machines, and what changes no result.
_OWN = frozenset((
    'data_dir', 'init_from', 'checkpoint_dir', 'result_file', 'summary_dir', 'report',
    'trace_steps', 'trace_file', 'export_dir', 'device', 'num_gpus', 'num_towers', 'input_threads',
    'inter_threads', 'intra_threads', 'graph_rewriter', 'xla', 'tower_build', 'stall_seconds',
    'worker_seconds', 'start_seconds', 'on_full_disk', 'keep_checkpoints', 'quiet'))

_GROUPS: List[str] = ['']


def _group(name: str) -> None:
  _GROUPS[0] = name


def _setting(kind: type, default: Any, help: str, choices: Any = ()) -> Any:
  if (kind in (str, Function)) != bool(choices):
    # A plain str does not say whether it is a path, which Config must check.
    raise TypeError(f"The setting '{help}' needs choices, or the kind Path or Text.")
  return dataclasses.field(
      default=default, metadata={'setting': Setting(_GROUPS[0], help, kind, tuple(choices))})


@dataclasses.dataclass(frozen=True)
class Config:
  """A run's settings, checked when they are made.

  Raises:
    UsageError: a value is invalid, or two contradict each other; names the flag, the value and the
      fix.
  """
  _group('data')
  data: str = _setting(Function, 'sample', 'data set, or your module:function', DATA_SETS)
  data_dir: Optional[str] = _setting(
      Path, None, 'folder with the files of the data set, if it has any')
  image_size: Optional[int] = _setting(
      int, None, 'images, tfrecord, tfds: pixels per side; default: the data\'s own, or 224')
  num_classes: Optional[int] = _setting(
      int, None, 'tfrecord, npy: number of classes; default: the data\'s own, or 1000')
  first_label: Optional[int] = _setting(
      int, None, 'tfrecord: label of class 0; default: the data\'s own, or 1')
  max_image_pixels: int = _setting(int, 64000000, 'an image with more is a bad record')
  on_bad_record: str = _setting(
      str, 'fail', 'end the run at a damaged record, or skip and log it', POLICIES)
  augment: str = _setting(
      str, 'none', 'cifar: pad, crop, mirror; imagenet: resized crop, mirror', KINDS)
  batch_size: int = _setting(int, 64, 'global batch: examples per step, over all towers')
  shuffle: bool = _setting(
      bool, True, 'reshuffle the training split in every epoch; --noshuffle keeps its order')
  accumulate: Union[int, str] = _setting(
      Count, 1, 'micro-batches per step: more of them take less memory; auto: as many as fit')
  last_batch: str = _setting(
      str, 'keep', 'of an epoch, if it is smaller: as it is; filled up, for one shape; left out',
      ('keep', 'pad', 'drop'))

  _group('inputs')
  input_mode: str = _setting(
      str, 'split', 'one batch, split; get_next per tower; iterator per tower',
      ('split', 'next', 'shard'))
  staging_depth: int = _setting(int, 1, 'batches staged ahead on each tower\'s device: 0, 1 or 2')
  input_threads: Optional[int] = _setting(
      int, None, 'examples parsed in parallel; default: one per core')
  input_only: bool = _setting(
      bool, False, 'measure the input modes without towers; train nothing')

  _group('towers')
  num_gpus: Optional[int] = _setting(
      int, None, 'towers, one per GPU; default: all GPUs, or 2 virtual CPU devices')
  device: str = _setting(
      str, 'auto', 'auto: GPUs if there are any, else virtual CPU devices', ('auto', 'gpu', 'cpu'))
  logical_gpus: Optional[int] = _setting(
      int, None, 'divide one GPU into this many, a tower on each; needs gpu_memory')
  gpu_memory: Optional[str] = _setting(
      Text, None, 'of each GPU: growth, a fraction such as 0.4, or megabytes; default: all')
  tf32: str = _setting(
      str, 'on', 'round factors of float32 products on GPUs from Ampere on', ('on', 'off'))
  model: str = _setting(
      Function, 'convnet', 'model of every tower, or your module:function', MODELS)
  label_smoothing: float = _setting(
      float, 0.0, 'share of each training label that is spread over all classes')
  drop_path: float = _setting(
      float, 0.0, 'NASNet: share of paths dropped in the last cell; less in earlier ones')
  data_format: str = _setting(
      str, 'NHWC', 'layout of images in the model; NCHW needs GPUs', DATA_FORMATS)
  tower_build: str = _setting(
      str, 'auto', 'reuse: call the model for each tower; clone: copy the first tower\'s graph; '
      'auto: clone deep models', ('reuse', 'clone', 'auto'))
  graph_rewriter: str = _setting(
      str, 'auto', 'let TensorFlow optimize the graph (Grappler); auto: on GPUs, or with XLA',
      ('auto', 'on', 'off'))
  xla: str = _setting(
      str, 'auto', 'compile with XLA; auto: as TF_XLA_FLAGS says, else off', ('auto', 'on', 'off'))
  inter_threads: Optional[int] = _setting(
      int, None, 'ops run in parallel; default: one per core, or per tower if more')
  intra_threads: Optional[int] = _setting(
      int, None, 'threads within one op; default: the cores of its tower')
  variables: str = _setting(
      str, 'host', 'where variables live; replicated: a replica on every tower',
      ('host', 'first', 'balanced', 'replicated'))
  collective: str = _setting(
      str, 'auto', 'all-reduce of replicas; auto: nccl on GPUs, else ring',
      ('auto', 'ring', 'nccl'))
  fusion_megabytes: float = _setting(
      float, 4.0, 'megabytes of gradients in one all-reduce; 0: no fusion')
  precision: str = _setting(
      str, 'float32', 'mixed: compute in 16 bits, keep weights in float32', ('float32', 'mixed'))
  loss_scale: Optional[float] = _setting(
      float, None, 'for precision=mixed; default: dynamic, or 1 for bfloat16')
  recompute: str = _setting(
      Text, 'none', 'activations computed again to save memory: auto, a number of segments, or '
      'names of ops, as block_1/')
  batch_norm: str = _setting(
      str, 'first', 'averages of tower 0; of all towers; synchronized moments',
      ('first', 'mean', 'sync'))
  init_from: Optional[str] = _setting(
      Path, None, 'checkpoint or .h5 file to start from, unless checkpoint_dir has a checkpoint')
  init_map: Optional[str] = _setting(
      Text, None, 'names in that file to names in the model, as resnet/=model/')
  reinit: Optional[str] = _setting(
      Text, None, 'patterns of variables that start anew all the same, as logits/')

  _group('workers, from TF_CONFIG')
  wire: str = _setting(
      str, 'float32', 'in what gradients cross between workers; on 2.x, 16 bits halve the bytes',
      ('float32', 'float16', 'bfloat16'))
  start_seconds: float = _setting(float, 300.0, 'seconds to wait for all workers at the start')
  worker_seconds: float = _setting(
      float, 20.0, 'seconds of silence from another worker, after which the run ends')

  _group('weight update')
  optimizer: str = _setting(
      str, 'momentum', 'optimizer',
      ('sgd', 'momentum', 'nesterov', 'rmsprop', 'adam', 'adamw', 'lars', 'lamb'))
  learning_rate: Optional[float] = _setting(
      float, None, 'peak learning rate; default: by the optimizer')
  momentum: float = _setting(float, 0.9, 'for momentum, nesterov, rmsprop and lars')
  beta1: float = _setting(float, 0.9, 'share of the first moment kept, for adam, adamw and lamb')
  beta2: float = _setting(float, 0.999, 'share of the second moment kept, for the same')
  rms_decay: float = _setting(float, 0.9, 'share of the mean square kept, for rmsprop')
  epsilon: Optional[float] = _setting(
      float, None, 'in the divisor; default: 1e-8 for adam and adamw, 1e-6 for lamb, 1 for rmsprop')
  frozen: Optional[str] = _setting(
      Text, None, 'patterns of variables that stay as they are, as encoder/')
  rate_factors: Optional[str] = _setting(
      Text, None, 'what multiplies the rate of some variables, as encoder/=0.1')
  clip_norm: Optional[float] = _setting(
      float, None, 'largest global norm of gradients; default: no clipping')
  weight_decay: float = _setting(
      float, 0.0, 'factor by which each matrix or kernel is added to its gradient; adamw: taken '
      'off the weight')
  average_weights: Optional[float] = _setting(
      float, None, 'decay of moving averages of the weights, to validate and export; as 0.9999')
  schedule: str = _setting(
      str, 'cosine', 'learning rate over the examples seen',
      ('constant', 'piecewise', 'exponential', 'cosine'))
  warmup_epochs: float = _setting(float, 0.0, 'epochs in which the learning rate rises from 0')
  decay_epochs: Tuple[float, ...] = _setting(
      list, (), 'epochs at which the rate falls, as 30,60; exponential: epochs per fall')
  decay_rate: float = _setting(float, 0.1, 'factor of each fall of the learning rate')
  min_rate: float = _setting(float, 0.0, 'below which no schedule falls')

  _group('loop')
  epochs: Optional[float] = _setting(float, None, 'passes over the training split; default: 5')
  steps: Optional[int] = _setting(int, None, 'weight updates, instead of epochs')
  validation: str = _setting(
      str, 'switch', 'by all towers in turn; by the last one meanwhile; never',
      ('switch', 'tower', 'none'))
  validate_every: str = _setting(
      Text, '1epoch', 'how often to validate, as 500steps or 2epochs')
  checkpoint_dir: Optional[str] = _setting(
      Path, None, 'folder to save to, and to resume from if it has a checkpoint')
  checkpoint_every: str = _setting(
      Text, '1epoch', 'how often to save, as 500steps, 2epochs or 600seconds')
  keep_checkpoints: int = _setting(int, 5, 'newest checkpoints to keep, besides the best one')
  best_metric: str = _setting(
      Text, 'loss', 'metric of the best validation: the smallest if a loss or error, else the '
      'largest')
  early_stopping: Optional[int] = _setting(
      int, None, 'stop after this many validations in a row without a new best')
  on_full_disk: str = _setting(str, 'warn', 'when a checkpoint cannot be written', ('warn', 'stop'))
  on_nan: str = _setting(
      str, 'stop', 'when the loss or a gradient is not finite', ('stop', 'skip', 'rollback'))
  stall_seconds: float = _setting(
      float, 300.0, 'seconds without progress, after which the run ends and says why')
  seed: int = _setting(int, 0, 'for initial weights, shuffling and dropout')
  deterministic: bool = _setting(
      bool, False, 'only kernels that repeat to the bit, at some cost in speed')
  autotune: bool = _setting(
      bool, False, 'find the fastest settings in short trials, then train with them')
  check: bool = _setting(
      bool, False, 'compare the towers with one tower, on CPUs unless device=gpu; train nothing')
  result_file: Optional[str] = _setting(Path, None, 'file for the result, as one JSON object')

  _group('reporting')
  quiet: bool = _setting(
      bool, False, 'no progress line; set-up, validation, warnings and the result still show')
  summary_dir: Optional[str] = _setting(
      Path, None, 'folder for TensorBoard: curves, text and graph')
  report: Optional[str] = _setting(
      Path, None, 'HTML page to write: curves, times, devices, settings')
  summary_every: str = _setting(
      Text, '0.1epochs', 'how often to sample the curves, as 500steps or 0.1epochs')
  trace_steps: Optional[str] = _setting(Text, None, 'steps to trace op by op, as 10:12')
  trace_file: str = _setting(
      Path, 'trace.json', 'file for the trace, for chrome://tracing or Perfetto')

  _group('tools')
  doctor: bool = _setting(
      bool, False, 'examine this machine and report what is wrong; train nothing')
  find_batch: bool = _setting(
      bool, False, 'find the largest batch per tower that fits into memory; train nothing')
  tower_megabytes: Optional[float] = _setting(
      float, None, 'find_batch: what a tower may take; default: what its device has')
  export_dir: Optional[str] = _setting(Path, None, 'folder for the best weights as a SavedModel')
  predict: Optional[str] = _setting(
      Path, None, '.npy or .npz file, or folder of images, to predict, instead of training')

  def __post_init__(self) -> None:
    check_config(self)

  def for_worker(self, cluster: Cluster) -> 'Config':
    """Returns the settings of one process of a cluster; only the chief writes and reports.

    Raises:
      UsageError: several workers are given a job for one.
    """
    for name in ('check', 'find_batch', 'input_only'):
      if cluster.trains_together and getattr(self, name):
        raise UsageError(f'{name} is a job for one worker, and TF_CONFIG names '
                         f'{len(cluster.addresses)}: unset TF_CONFIG for it.')
    if cluster.is_elastic and not cluster.is_evaluator and not self.checkpoint_dir:
      raise UsageError('min_workers starts all again as fewer or more workers, which without '
                       'checkpoints begin with the first step: give the command a checkpoint_dir.')
    if cluster.is_chief:
      return self
    changes: Dict[str, Any] = dict.fromkeys(_CHIEFS)
    if cluster.is_evaluator:
      changes.update(validation='switch', summary_dir=self.summary_dir, autotune=False)
    return dataclasses.replace(self, quiet=True, **changes)

  def common_to_workers(self) -> Dict[str, Any]:
    """Returns the settings that all workers of a cluster must share, by name."""
    return common_to_workers(dataclasses.asdict(self))

  def session_settings(self) -> Dict[str, Any]:
    """Returns the keyword arguments of `towers.Session` that flags set."""
    return dict(graph_rewriter=self.graph_rewriter, inter_threads=self.inter_threads,
                intra_threads=self.intra_threads)

  def count_steps(self, steps_per_epoch: int) -> int:
    """Returns the weight updates of the whole run."""
    return intervals.count_steps(steps_per_epoch, epochs=self.epochs, steps=self.steps)

  @property
  def keeps_curves(self) -> bool:
    """Whether the run samples its metrics, for summaries or the report."""
    return self.summary_dir is not None or self.report is not None

  def peak_learning_rate(self) -> float:
    """Returns the rate after warm-up and before any decay."""
    if self.learning_rate is not None:
      return self.learning_rate
    return _PEAKS.get(self.optimizer, 0.05)


def common_to_workers(settings: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns those of some settings that all workers of a cluster must share, by name."""
  return {name: value for name, value in settings.items() if name not in _OWN}
