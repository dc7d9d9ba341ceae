"""A timed trial: some steps of `main.py` in a process of their own, which may crash or hang."""

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from towers.base.usage_error import UsageError
from towers.cli.user_functions import is_given
from towers.extras import FOLDER
from towers.placement.cluster import ELASTIC
from towers.process.run_error import WorkerGone
from towers.settings.config import Config
from towers.settings.table import GROUPS, SETTINGS

# Trials add this folder to PYTHONPATH, so they also run where towers is not installed.
ROOT = os.path.dirname(FOLDER)
# A trial's reports, checkpoints and validations would only be thrown away.
LEFT_OUT: Dict[str, Any] = dict(
    autotune=False, epochs=None, validation='none', validation_tower=False, checkpoint_dir=None,
    early_stopping=None, on_nan='stop', best_metric='loss')
LEFT_OUT.update({setting.name: setting.default
                 for setting in (*GROUPS['reporting'], *GROUPS['tools'])})
# Exit codes after which the last line of stderr says what is wrong.
_EXPLAINED_EXIT_CODES = (2, 3)


class TimedTrial(NamedTuple):
  """What a trial measured."""
  losses: Sequence[float] = ()  # Of its first steps.
  examples_per_second: float = 0.0  # After the first step.
  num_towers: int = 0  # That trained.
  all_reduce_bytes: int = 0  # Of the gradients that towers or workers sum in a step.
  error: str = ''  # Why the trial failed, or ''.


def format_flags(settings: Dict[str, Any]) -> List[str]:
  """Returns the flags that give these settings; a setting at its default needs none."""
  found = []
  for name, setting in SETTINGS.items():
    value = settings.get(name, setting.default)
    if value == setting.default:
      continue
    if isinstance(value, bool):
      found.append(f"--{'' if value else 'no'}{name}")
    else:
      text = ','.join(map(str, value)) if isinstance(value, (list, tuple)) else value
      found.append(f'--{name}={text}')
  return found


def run_trial(config: Config, changes: Dict[str, Any], *, command: Sequence[str], steps: int,
              limit_seconds: Optional[float] = None, has_result: bool = True,
              environment: Optional[Dict[str, str]] = None) -> TimedTrial:
  """Runs some steps of a config in another process; a failure there is the trial's `error`.

  Of several workers the chief alone `has_result`.
  """
  settings = dict(dataclasses.asdict(config), **LEFT_OUT)
  settings.update(changes, steps=steps)
  # A script gives its own model and data again.
  settings.update({name: getattr(Config, name) for name in ('model', 'data')
                   if is_given(settings[name])})
  if config.validation_tower and config.num_towers is not None:
    settings['num_towers'] = config.num_towers - 1
  paths = os.pathsep.join(filter(None, [ROOT, os.environ.get('PYTHONPATH')]))
  environment = dict(os.environ, **environment or {}, PYTHONPATH=paths)
  # A trial is not started again, and keeps no checkpoints.
  environment.pop(ELASTIC, None)
  with _temporary_folder() as folder:
    settings['result_file'] = os.path.join(folder, 'result.json')
    try:
      done = subprocess.run(
          [*command, *format_flags(settings)], env=environment,
          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
          timeout=limit_seconds)
    except subprocess.TimeoutExpired:
      return TimedTrial(error=f'not done after {limit_seconds:.0f} s')
    if done.returncode:
      return TimedTrial(error=_find_error(done.returncode, done.stderr))
    if not has_result:
      return TimedTrial()
    with open(settings['result_file'], encoding='utf-8') as file:
      result = json.load(file)
  return TimedTrial(losses=result['first_losses'],
                    examples_per_second=result['examples_per_second'],
                    num_towers=result['num_towers'],
                    all_reduce_bytes=result.get('all_reduce_bytes') or 0)


@contextlib.contextmanager
def _temporary_folder():
  try:
    opened = tempfile.TemporaryDirectory(prefix='towers-autotune-')
  except OSError as error:
    raise UsageError(f'There is no folder for temporary files: {error.strerror}. Set TMPDIR to one '
                     'that can be written.') from None
  with opened as folder:
    yield folder


def join_trials(trials: Sequence[TimedTrial]) -> TimedTrial:
  """Returns the trial of all workers, from that of each by rank: the chief's, if none has failed.

  JSON has no NaN, so a loss may come as text.
  """
  errors = {rank: trial.error for rank, trial in enumerate(trials) if trial.error}
  if not errors:
    return trials[0]._replace(losses=[float(loss) for loss in trials[0].losses])
  # A worker whose trial has failed ends those of the others.
  rank = min(errors, key=lambda rank: (_is_consequence(errors[rank]), rank))
  return TimedTrial(error=errors[rank] if rank == 0 else f'in worker {rank}: {errors[rank]}')


def _is_consequence(error):
  return error == f'exit code {WorkerGone.exit_code}' or 'The workers have different' in error


def _find_error(code, stderr):
  lines = stderr.decode(errors='replace').strip().splitlines()
  if lines and code in _EXPLAINED_EXIT_CODES:
    return lines[-1].replace('towers: error: ', '', 1)[:200]
  return f'exit code {code}' if code > 0 else f'ended by signal {-code}'
