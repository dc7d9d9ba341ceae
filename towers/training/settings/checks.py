"""Checks: what settings of a run exclude each other, or are out of range.

`Config` calls them with itself when it is made. None imports TensorFlow.
"""

from typing import Any

from towers.base.usage_error import UsageError
from towers.placement.gpu_memory import read_gpu_memory
from towers.setting import is_function
from towers.settings import SETTINGS
from towers.training.settings import intervals


def check_config(config: Any) -> None:
  """Checks each setting of a `Config`, and all of them together.

  Raises:
    UsageError: names the flag, the value and the fix.
  """
  for name, setting in SETTINGS.items():
    setting.check(getattr(config, name))
  # NumPy, which draws synthetic data, takes no other seed.
  _refuse(config.seed < 0, f'seed={config.seed}: it must be at least 0.')
  _check_learning_rate(config)
  _check_intervals(config)
  _check_devices(config)
  _check_job(config)
  _check_own_functions(config)
  _check_validation_and_checkpoints(config)


def _check_learning_rate(config: Any) -> None:
  """Refuses a schedule whose `decay_epochs` are missing, superfluous or out of order."""
  epochs = config.decay_epochs
  text = ','.join(f'{epoch:g}' for epoch in epochs)
  _refuse(config.schedule in ('piecewise', 'exponential') and not epochs,
          f'schedule={config.schedule} needs decay_epochs, such as decay_epochs=3.')
  _refuse(config.schedule == 'exponential' and len(epochs) > 1,
          f'schedule=exponential takes one number of decay_epochs, not {len(epochs)}.')
  _refuse(config.schedule in ('constant', 'cosine') and bool(epochs),
          f'decay_epochs={text} has no effect with schedule={config.schedule}: use '
          'schedule=piecewise or exponential.')
  least = config.min_rate
  _refuse(least > 0 and config.schedule == 'constant',
          f'min_rate={least:g} has no effect with schedule=constant: use another one.')
  _refuse(least > 0 and least >= config.peak_learning_rate(),
          f'min_rate={least:g} must be below the peak, '
          f'learning_rate={config.peak_learning_rate():g}.')
  _refuse(any(epoch <= 0 for epoch in epochs) or sorted(set(epochs)) != list(epochs),
          f'decay_epochs={text}: they must be above 0 and rise.')


def _check_intervals(config: Any) -> None:
  _refuse(config.steps is not None and config.epochs is not None,
          f'steps={config.steps} and epochs={config.epochs} both set the length of the run: give '
          'one of them.')
  for name in ('validate_every', 'checkpoint_every', 'summary_every'):
    _, unit = intervals.parse_interval(name, getattr(config, name))
    _refuse(name != 'checkpoint_every' and unit == 'seconds',
            f'{name}={getattr(config, name)}: count it in steps or epochs, so that runs repeat.')
  if config.trace_steps is not None:
    intervals.parse_trace_steps(config.trace_steps)


def _check_devices(config: Any) -> None:
  """Refuses formats, collectives and precisions that the chosen devices do not have."""
  checks_on_cpus = config.check and config.device != 'gpu'
  cause = 'check, which runs on CPU devices' if checks_on_cpus else 'device=cpu'
  _refuse(config.data_format == 'NCHW' and (checks_on_cpus or config.device == 'cpu'),
          f'data_format=NCHW with {cause}: this format needs GPUs; use data_format=NHWC, whose '
          'weights and checkpoints are the same.')
  logical = config.logical_gpus
  read_gpu_memory(config.gpu_memory, logical)
  _refuse(logical is not None and config.device == 'cpu',
          f'logical_gpus={logical} with device=cpu: virtual CPU devices need no GPU to divide; '
          'use num_gpus alone.')
  _refuse(logical is not None and config.check,
          f'logical_gpus={logical} has no effect on check: leave it out.')
  _refuse(logical is not None and config.collective == 'nccl',
          f'collective=nccl with logical_gpus={logical}: it refuses two towers on one GPU; use '
          'collective=ring.')
  _refuse(config.collective == 'nccl' and config.device == 'cpu',
          'collective=nccl with device=cpu: it runs on GPUs alone; use collective=ring.')
  _refuse(config.loss_scale is not None and config.precision != 'mixed',
          f'loss_scale={config.loss_scale} has no effect with precision={config.precision}: use '
          'precision=mixed.')


def _check_job(config: Any) -> None:
  """Refuses jobs that contradict each other, or that lack the folder they read."""
  others = [name for name in ('check', 'find_batch', 'input_only') if getattr(config, name)]
  other = others[0] if others else ''
  _refuse(len(others) > 1, f"{' and '.join(others)} are different jobs: give one of them.")
  _refuse(config.autotune and bool(other),
          f'autotune with {other}, which trains nothing: give one of them.')
  _refuse(config.tower_megabytes is not None and not config.find_batch,
          f'tower_megabytes={config.tower_megabytes} has no effect without find_batch.')
  _refuse(config.tower_megabytes is not None and config.gpu_memory is not None,
          f'tower_megabytes={config.tower_megabytes} and gpu_memory={config.gpu_memory} both say '
          'what a tower may take: give one of them.')
  for name in ('init_map', 'reinit'):
    _refuse(getattr(config, name) is not None and config.init_from is None,
            f'{name}={getattr(config, name)} has no effect without init_from: name the file too.')
  _refuse(config.init_from is not None and bool(other),
          f'init_from={config.init_from} has no effect on {other}, which trains nothing: leave it '
          'out.')
  sources = (config.checkpoint_dir, config.predict)
  _refuse(config.export_dir is not None and sources == (None, None),
          f'export_dir={config.export_dir} needs a checkpoint_dir, whose best checkpoint is '
          'exported.')
  folders = (config.export_dir, config.checkpoint_dir)
  _refuse(config.predict is not None and folders.count(None) != 1,
          f'predict={config.predict} needs either checkpoint_dir (of a run) or export_dir (of '
          'an exported model).')


def _check_own_functions(config: Any) -> None:
  """Refuses flags that only the data sets and models of towers take."""
  changed = {name for name, setting in SETTINGS.items() if getattr(config, name) != setting.default}
  for name in ('data_dir', 'image_size', 'num_classes', 'first_label', 'augment',
               'on_bad_record', 'max_image_pixels'):
    _refuse(is_function(config.data) and name in changed,
            f'{name}={getattr(config, name)} has no effect on data={config.data}, which reads its '
            'own: leave it out, and let the function decide.')
  for name in ('label_smoothing', 'drop_path'):
    _refuse(is_function(config.model) and name in changed,
            f'{name}={getattr(config, name)} has no effect on model={config.model}, which returns '
            'its own losses: leave it out.')
  _refuse('drop_path' in changed and not config.model.startswith('nasnet'),
          f'drop_path={config.drop_path:g} has no effect on model={config.model}, which has no '
          'paths to drop: use a model of the NASNet family.')
  _refuse(is_function(config.model) and 'data_format' in changed,
          f'data_format={config.data_format} has no effect on model={config.model}: let the '
          'function choose the format of its layers.')


def _check_validation_and_checkpoints(config: Any) -> None:
  _refuse(config.on_nan == 'rollback' and config.checkpoint_dir is None,
          'on_nan=rollback needs a checkpoint_dir to go back to.')
  _refuse(config.early_stopping is not None and config.validation == 'none',
          f'early_stopping={config.early_stopping} needs validation, which is none: use '
          'validation=switch.')


def _refuse(is_wrong: bool, message: str) -> None:
  if is_wrong:
    raise UsageError(message)
