"""Jobs: what the command line can be asked for, one function each.

They need TensorFlow, and are imported once flags and files have been read.
"""

import contextlib
import dataclasses
import sys
from typing import Any, Dict, Optional, Sequence

import towers.models as models
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import find_checkpoints
from towers.checks import towers as towers_check
from towers.cli.user_functions import find_predict, load_function
from towers.data import DataSet, Examples
from towers.extras import load_extra
from towers.input.micro_batches import read_accumulate
from towers.input.resume_point import CARRY_TENSOR
from towers.optimizers import DECAYING, build_optimizer
from towers.placement.cluster import Cluster
from towers.placement.counters import get_examples_seen
from towers.placement.devices import build_devices
from towers.placement.patterns import parse_pairs
from towers.placement.workers import Workers
from towers.placement.xla import compiles
from towers.process.run_error import end_process
from towers.process.signals import Signals
from towers.process.startup import Startup
from towers.program import Program
from towers.session.predict_function import Predict, classify
from towers.settings.config import Config
from towers.settings.setting import is_function
from towers.settings.table import arguments_of
from towers.tensorflow_v1 import tf, use_deterministic_kernels, use_tf32
from towers.tower.losses import ScalarLoss
from towers.tower.model_call import Model
from towers.training.reporting.describe import describe_check
from towers.training.run import Run
from towers.update.learning_rate import build_learning_rate
from towers.warm_start.matching import init_from
from towers.warm_start.slices import open_reader


def train(config: Config, cluster: Cluster, data_set: DataSet, startup: Startup,
          signals: Signals) -> None:
  """Trains the program that a config describes, and exports it if asked."""
  devices = _build_devices(config)
  export = None
  if config.export_dir:
    # A model that cannot be exported is refused before all those steps, rather than after.
    export = load_extra('--export_dir')(
        config.export_dir, checkpoint_dir=config.checkpoint_dir, examples=data_set.train,
        predict=_find_predict(config, data_set), best_metric=config.best_metric)
  model = _build_model(config, data_set)
  told = dict(dataclasses.asdict(config),
              last_batch=_choose_last_batch(config, devices, cluster, data_set.train))
  source = ''
  if data_set.source:
    source = f'{data_set.source}; damaged records: {config.on_bad_record}'
  if cluster.trains_together and data_set.bad_records is not None:
    # A step that fails while workers wait for each other crashes TensorFlow 1.14 now and then.
    data_set.bad_records.on_failure = lambda message: end_process(message, 2)
  run = Run(config, told, startup, signals, bad_records=data_set.bad_records)
  with run.joined(config, devices, (data_set.train, data_set.validation)) as accumulate:
    def build():
      with tf.Graph().as_default() as graph:
        startup.begin('graph', lambda: (
            f'building the graph ({len(graph.get_operations()):,} ops so far)'))
        return build_configured(dataclasses.replace(
            config, accumulate=accumulate, last_batch=told['last_batch']), model, data_set)

    try:
      program = build()
    except ScalarLoss:
      if config.last_batch != 'auto':
        raise
      told['last_batch'] = 'keep'
      program = build()
    run.train(program, data=config.data, source=source, model=config.model,
              update=f'{config.optimizer}, {config.schedule} schedule, '
                     f'peak rate {config.peak_learning_rate():g}')
  if export is not None and not cluster.is_evaluator:
    write_line(f'exported to {export()}')


def build_configured(config: Config, model: Model, data_set: DataSet,
                     workers: Optional[Workers] = None) -> Program:
  """Returns the program that a config describes; the `workers` that TF_CONFIG says if None."""
  settings = {name: getattr(config, name) for name in arguments_of('program')}
  if config.optimizer in DECAYING:
    settings['weight_decay'] = 0.0
  started = None
  if config.init_from is not None:
    names = parse_pairs('init_map', config.init_map, like='resnet/=model/')
    started = init_from(config.init_from, names=names, reinit=config.reinit or ())._replace(
        setting='init_map')
  return Program(
      model, train=data_set.train,
      validation=None if config.validation == 'none' else data_set.validation,
      learning_rate=lambda plan: build_learning_rate(config, plan, get_examples_seen()),
      optimizer=lambda rate: build_optimizer(config, rate), frozen=config.frozen or (),
      rate_factors=_parse_factors(config.rate_factors), init_from=started,
      workers=workers, **settings)


def _parse_factors(text: Optional[str]) -> Dict[str, float]:
  pairs = parse_pairs('rate_factors', text, like='encoder/=0.1')
  try:
    return {pattern: float(factor) for pattern, factor in pairs.items()}
  except ValueError as error:
    raise UsageError(f'rate_factors={text}: {error}. Give numbers, as encoder/=0.1.') from None


def _choose_last_batch(config: Config, devices: Any, cluster: Cluster, train: Examples) -> str:
  """Returns what `last_batch` says; 'auto' is as in the newest checkpoint that can be read.

  A new run of one worker carries where XLA compiles, which so has one shape to compile.
  """
  if config.last_batch != 'auto':
    return config.last_batch
  for path in find_checkpoints(config.checkpoint_dir) if config.checkpoint_dir else ():
    with contextlib.suppress(Exception):  # A damaged one makes TensorFlow raise anything.
      return 'carry' if open_reader(path).has_tensor(CARRY_TENSOR) else 'keep'
  may_carry = train.buckets is None and not train.marks_bad and cluster.num_workers == 1
  return 'carry' if may_carry and compiles(devices.kind, config.precision) else 'keep'


def check(config: Config, data_set: DataSet) -> bool:
  """Compares the model's towers with one tower; returns whether they agree.

  Random ops that keep a state of their own differ between towers; then a second comparison leaves
  them out by `is_training=False`. GPUs are used with `--device=gpu` alone.
  """
  on_gpus = config.device == 'gpu'
  if config.deterministic or on_gpus:
    use_deterministic_kernels()
  # Towers that differ by the rounding of TF32 would look different for other causes.
  use_tf32(config.tf32 == 'on' and not on_gpus)
  model = _build_model(config, data_set)
  reports = []
  for is_training in (True, False):
    reports.append(towers_check.check(
        model, data_set.train, num_towers=config.num_towers or 2, batch_size=config.batch_size,
        seed=config.seed, batch_norm=config.batch_norm, is_training=is_training,
        device='gpu' if on_gpus else 'cpu'))
    write_line(f'is_training={is_training}: {reports[-1].format()}')
    if reports[-1].agrees or not reports[-1].draws:
      break
  write_line(describe_check(config))
  return reports[-1].agrees and all(report.agrees or report.only_draws for report in reports)


def measure_input(config: Config, data_set: DataSet) -> Dict[str, float]:
  """Measures the input modes without towers; returns examples per second by mode."""
  return load_extra('--input_only')(
      data_set.train, build_devices(config.num_towers, config.device),
      batch_size=config.batch_size, accumulate=read_accumulate(config.accumulate),
      last_batch='keep' if config.last_batch == 'auto' else config.last_batch,
      shuffle=config.shuffle, seed=config.seed, input_threads=config.input_threads)


def find_batch(config: Config, data_set: DataSet, command: Sequence[str]) -> Dict[str, Any]:
  """Returns the largest batch that fits, and more, by name; `command` starts the program again."""
  return load_extra('--find_batch')(
      config, _build_devices(config), num_examples=data_set.train.num_examples, command=command)


def predict(config: Config, data_set: Optional[DataSet]) -> None:
  """Writes what the model predicts for --predict, of a run's data set; None for an exported one."""
  of_run: Dict[str, Any] = {}
  if data_set is not None:
    of_run = dict(predict=_find_predict(config, data_set), examples=data_set.train)
  load_extra('--predict')(config, **of_run)


def _build_devices(config):
  """Returns the towers' devices, with the notice printed; refuses what they cannot do."""
  if config.deterministic:
    use_deterministic_kernels()
  use_tf32(config.tf32 == 'on')
  devices = build_devices(config.num_towers, config.device, logical_gpus=config.logical_gpus,
                          gpu_memory=config.gpu_memory)
  if devices.notice:
    write_line(f'towers: {devices.notice}', sys.stderr)
  if config.data_format == 'NCHW' and devices.kind == 'CPU':
    raise UsageError('data_format=NCHW needs GPUs, and TensorFlow sees none. Use data_format=NHWC, '
                     'whose weights and checkpoints are the same.')
  return devices


def _find_predict(config, data_set) -> Predict:
  if is_function(config.model):
    return find_predict(config.model)
  _check_num_classes(config, data_set)
  return classify(models.build_logits(config.model, num_classes=data_set.num_classes))


def _build_model(config, data_set) -> Model:
  if is_function(config.model):
    return load_function('model', config.model)
  _check_num_classes(config, data_set)
  return models.build_classifier(
      config.model, num_classes=data_set.num_classes, data_format=config.data_format,
      label_smoothing=config.label_smoothing, drop_path=config.drop_path)


def _check_num_classes(config, data_set):
  if not data_set.num_classes:
    raise UsageError(f'model={config.model} must know the number of classes, which '
                     f'data={config.data} does not tell: return a towers.DataSet with num_classes '
                     'and image_shape, or give a model of your own.')
