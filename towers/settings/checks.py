"""Checks: what settings exclude each other.

`RunSettings` and `Config` call them with themselves when they are made, once each value is one that
its setting can have. None imports TensorFlow; what depends on the devices that it finds is refused
where these are chosen.
"""

from typing import Any

from towers.base.usage_error import UsageError
from towers.data import LoadSettings
from towers.settings import timetable
from towers.settings.setting import is_function
from towers.settings.table import SETTINGS

# What does nothing without another setting.
_NEEDS = (('tower_megabytes', 'find_batch'), ('init_map', 'init_from'), ('reinit', 'init_from'))
# What only the data sets, and the models, of towers take.
_OF_DATA = tuple(name for name in LoadSettings._fields if name != 'seed')
_OF_MODEL = ('label_smoothing', 'drop_path', 'data_format')


def check_run(settings: Any) -> None:
  """Checks the settings of a run together; a UsageError names what to change."""
  _refuse(settings.steps is not None and settings.epochs is not None,
          f'steps={settings.steps} and epochs={settings.epochs} both set the length of the run: '
          'give one of them.')
  for name in ('validate_every', 'checkpoint_every', 'summary_every'):
    _, unit = timetable.parse_interval(name, getattr(settings, name))
    _refuse(name != 'checkpoint_every' and unit == 'seconds',
            f'{name}={getattr(settings, name)}: count it in steps or epochs, so that runs repeat.')
  if settings.trace_steps is not None:
    timetable.parse_trace_steps(settings.trace_steps)
  _refuse(settings.on_nan == 'rollback' and settings.checkpoint_dir is None,
          'on_nan=rollback needs a checkpoint_dir to go back to.')


def check_program(settings: Any) -> None:
  """Checks the settings of a program together, as `check_run` does those of a run."""
  _refuse(settings.loss_scale is not None and settings.precision != 'mixed',
          f'loss_scale={settings.loss_scale} has no effect with precision={settings.precision}: '
          'use precision=mixed.')


def check_config(config: Any) -> None:
  """Checks all settings together, those of program and run among them."""
  check_run(config)
  check_program(config)
  # NumPy, which draws synthetic data, takes no other seed.
  _refuse(config.seed < 0, f'seed={config.seed}: it must be at least 0.')
  for name, other in _NEEDS:
    _refuse(getattr(config, name) is not None and not getattr(config, other),
            f'{name}={getattr(config, name)} has no effect without {other}.')
  _check_learning_rate(config)
  _check_job(config)
  _check_own_functions(config)
  _refuse(config.early_stopping is not None and config.validation == 'none',
          f'early_stopping={config.early_stopping} needs validation, which is none: use '
          'validation=switch.')
  _refuse(config.validation_tower and config.validation == 'none',
          'validation_tower has nothing to do with validation=none: leave one of them out.')


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


def _check_job(config: Any) -> None:
  """Refuses jobs that contradict each other, or that lack the folder they read."""
  others = [name for name in ('check', 'find_batch', 'input_only') if getattr(config, name)]
  other = others[0] if others else ''
  _refuse(len(others) > 1, f"{' and '.join(others)} are different jobs: give one of them.")
  _refuse(config.autotune and bool(other),
          f'autotune with {other}, which trains nothing: give one of them.')
  _refuse(config.tower_megabytes is not None and config.gpu_memory is not None,
          f'tower_megabytes={config.tower_megabytes} and gpu_memory={config.gpu_memory} both say '
          'what a tower may take: give one of them.')
  _refuse(config.init_from is not None and bool(other),
          f'init_from={config.init_from} has no effect on {other}, which trains nothing: leave it '
          'out.')
  _refuse(config.export_dir is not None and (config.checkpoint_dir, config.predict) == (None, None),
          f'export_dir={config.export_dir} needs a checkpoint_dir, whose best checkpoint is '
          'exported.')
  on_cpus = 'check, which runs on CPU devices' if config.check else 'device=cpu'
  _refuse(config.data_format == 'NCHW' and (
      config.device == 'cpu' or config.check and config.device != 'gpu'),
          f'data_format=NCHW with {on_cpus}: this format needs GPUs; use data_format=NHWC, whose '
          'weights and checkpoints are the same.')
  folders = (config.export_dir, config.checkpoint_dir)
  _refuse(config.predict is not None and folders.count(None) != 1,
          f'predict={config.predict} needs either checkpoint_dir (of a run) or export_dir (of '
          'an exported model).')


def _check_own_functions(config: Any) -> None:
  """Refuses flags that only the data sets and models of towers take."""
  for taker, names in (('data', _OF_DATA), ('model', _OF_MODEL)):
    for name in names if is_function(getattr(config, taker)) else ():
      _refuse(getattr(config, name) != SETTINGS[name].default,
              f'{name}={getattr(config, name)} has no effect on {taker}={getattr(config, taker)}: '
              'leave it out, and let the function decide.')


def _refuse(is_wrong: bool, message: str) -> None:
  if is_wrong:
    raise UsageError(message)
