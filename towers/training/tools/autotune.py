"""Autotune: which settings of speed are the fastest for one's own model, data and machine, by
trying them.

  plain settings      a process of its own ──► losses, examples/s
  --xla=on            another one          ──►      …             other losses: not taken
  --staging_depth=0   another one          ──►      …             faster: kept, and the next ones
  …                                                               are tried with it

Every trial is `main.py` itself, with all flags of the run, for a few seconds in a process that is
thrown away: one that crashes or never ends does no harm. What is found is remembered in the user's
cache, by a fingerprint of all that it depends on. A setting that is not at its default was chosen
by the user, and is not tried.
"""

import dataclasses
import glob
import hashlib
import importlib.machinery
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from towers.base.cores import count_cores, count_cores_of_each
from towers.base.usage_error import UsageError
from towers.base.user_cache import find_in_cache
from towers.base.whole_file import write_whole
from towers.training.settings.config import Config
from towers.training.settings.flags import format_flags

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
_SOURCE = ('models', 'staging', 'tensorflow_v1', 'towers')
_COMMAND = (sys.executable, '-m', 'towers')
_PILOT_STEPS = 8
_MOST_STEPS = 500
_SECONDS = 4.0  # That a trial of the plain settings takes for its steps.
_LIMIT_SECONDS, _LIMIT_FACTOR = 60.0, 4.0
_WORTH = 1.03  # What is less faster may be chance.
_TOLERANCE = 1e-3
# What a trial does without, since it is thrown away: nobody looks at it, and nothing of it is used.
_LEFT_OUT: Dict[str, Any] = dict(
    autotune=False, epochs=None, validation='none', checkpoint_dir=None, early_stopping=None,
    on_nan='stop', best_metric='loss', **{
        field.name: field.default
        for field in dataclasses.fields(Config)
        if field.metadata['setting'].group in ('to look at', 'to use')
    })
# What neither the speed nor the losses of the first steps depend on.
_NOT_IN_FINGERPRINT = set(_LEFT_OUT) - {'validation'} | {
    'steps', 'result_file', 'validate_every', 'checkpoint_every', 'keep_checkpoints',
    'on_full_disk', 'stall_seconds'}


class TimedTrial(NamedTuple):
  """What a process found.

  Attributes:
    losses: of its first steps.
    examples_per_second: after the first step.
    num_towers: that trained.
    error: why there is nothing of this, or ''.
  """
  losses: Sequence[float] = ()
  examples_per_second: float = 0.0
  num_towers: int = 0
  error: str = ''


class TrialRow(NamedTuple):
  """A line of the table.

  Attributes:
    settings: that differ from the plain ones.
    examples_per_second: 0 where it failed.
    verdict: in words; '' for the plain settings.
  """
  settings: Dict[str, Any]
  examples_per_second: float
  verdict: str


class Tuned(NamedTuple):
  """What was found.

  Attributes:
    settings: the fastest.
    rows: all trials, the plain one first.
  """
  settings: Dict[str, Any]
  rows: List[TrialRow]

  def format(self) -> str:
    """Returns the table."""
    names = [' '.join(format_flags(row.settings)) or 'plain' for row in self.rows]
    width = max(map(len, names))
    plain = self.rows[0].examples_per_second
    return '\n'.join(f'  {name:<{width}}  {row.examples_per_second:>12,.0f} examples/s  '
                     f'{row.examples_per_second / plain:5.2f}  {row.verdict}'.rstrip()
                     for name, row in zip(names, self.rows))


def autotune(config: Config, *, command: Sequence[str] = _COMMAND,
             seconds: float = _SECONDS) -> Config:
  """Returns the config with the fastest settings: remembered ones, or those that trials find now.

  Args:
    config: of the run.
    command: what runs a trial, before its flags.
    seconds: that the steps of a plain trial take, roughly.

  Raises:
    UsageError: the plain settings do not run; tells why.
  """
  path = _cache_path(config)
  tuned = _recall(path)
  if tuned is None:
    steps = _count_steps(config, _run_trial(command, config, {}, _PILOT_STEPS, None), seconds)
    print(f'autotune: trials of {steps:,} steps in processes of their own')
    limits: List[float] = []

    def run(settings):
      started = time.monotonic()
      trial = _run_trial(command, config, settings, steps, limits[0] if limits else None)
      limits.append(max(_LIMIT_SECONDS, _LIMIT_FACTOR * (time.monotonic() - started)))
      return trial

    tuned = tune(config, run)
    _remember(path, tuned)
    print(tuned.format())
  else:
    print(f'autotune: remembered in {path}\n{tuned.format()}')
  print('autotune: the same as %s' % (' '.join(format_flags(tuned.settings)) or 'no flags of speed '
                                                                                'at all'))
  return dataclasses.replace(config, autotune=False, **tuned.settings)


def tune(config: Config, run: Callable[[Dict[str, Any]], TimedTrial]) -> Tuned:
  """Tries settings one after another, and keeps what is faster and computes the same.

  Args:
    config: what is not at its default stays.
    run: runs a trial with some settings that differ.

  Raises:
    UsageError: the plain settings do not run.
  """
  plain = run({})
  _refuse_broken(plain)
  rows = [TrialRow({}, plain.examples_per_second, '')]
  best: Dict[str, Any] = {}
  speed = plain.examples_per_second
  for alternatives in list_alternatives(config, plain.num_towers):
    kept = best
    for alternative in alternatives:
      settings = dict(kept, **alternative)
      trial = run(settings)
      verdict = trial.error or _compare(trial.losses, plain.losses)
      if not verdict and trial.examples_per_second > _WORTH * speed:
        best, speed, verdict = settings, trial.examples_per_second, 'faster'
      rows.append(TrialRow(settings, trial.examples_per_second, verdict or 'not faster'))
  return Tuned(best, rows)


def list_alternatives(config: Config, num_towers: int) -> List[List[Dict[str, Any]]]:
  """Returns what is tried, in this order: of each inner list one at most is taken."""
  default = {field.name: field.default for field in dataclasses.fields(Config)}
  cores = count_cores()
  found: List[List[Dict[str, Any]]] = [
      [dict(xla='on')], [dict(graph_rewriter='on'),
                         dict(graph_rewriter='off')],
      [
          dict(inter_threads=inter, intra_threads=intra)
          for inter, intra in sorted({(cores,
                                       1), (1,
                                            cores), (cores,
                                                     count_cores_of_each(num_towers)), (2 * cores,
                                                                                        1)})
      ], [dict(staging_depth=depth) for depth in (0, 2)],
      [dict(variables=kind) for kind in ('first', 'balanced', 'replicated') if num_towers > 1],
  ]
  return [
      alternatives for alternatives in found
      if alternatives and all(getattr(config, name) == default[name] for name in alternatives[0])
  ]


def _compare(losses, expected):
  """Returns '' if losses agree but for rounding, else the first that does not, in words."""
  for step, (ours, theirs) in enumerate(zip(losses, expected)):
    if not abs(ours - theirs) <= _TOLERANCE * max(abs(theirs), 1e-2):
      return f'disagrees: loss {ours:.5g} in step {step + 1}, not {theirs:.5g}'
  return '' if len(losses) == len(expected) else (f'disagrees: {len(losses)} losses, not '
                                                  f'{len(expected)}')


def _refuse_broken(trial):
  if trial.error:
    raise UsageError(f'autotune: the settings as they are do not run: {trial.error}')


def _count_steps(config, pilot, seconds):
  _refuse_broken(pilot)
  return int(
      min(max(seconds * pilot.examples_per_second / config.batch_size, _PILOT_STEPS), _MOST_STEPS))


def _run_trial(command, config, changes, steps, limit_seconds):
  """Runs `steps` steps in another process; never raises for what happens there."""
  given = dataclasses.replace(config, **dict(_LEFT_OUT, **changes), steps=steps)
  if config.validation == 'tower' and config.num_gpus is not None:
    given = dataclasses.replace(given, num_gpus=config.num_gpus - 1)
  with tempfile.TemporaryDirectory(prefix='towers-autotune-') as folder:
    path = os.path.join(folder, 'result.json')
    settings = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    line = [*command, *format_flags(dict(settings, result_file=path))]
    # Wherever this source stands: it may be installed nowhere.
    paths = os.pathsep.join(filter(None, [_ROOT, os.environ.get('PYTHONPATH')]))
    try:
      done = subprocess.run(
          line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
          timeout=limit_seconds, env=dict(os.environ, PYTHONPATH=paths))
    except subprocess.TimeoutExpired:
      return TimedTrial(error=f'not done after {limit_seconds:.0f} s')
    if done.returncode:
      said = done.stderr.decode(errors='replace').strip().splitlines()
      code = done.returncode
      how = f'exit code {code}' if code > 0 else f'ended by signal {-code}'
      return TimedTrial(error=said[-1][:200] if said and code in (2, 3) else how)
    with open(path, encoding='utf-8') as file:
      result = json.load(file)
  return TimedTrial(result['first_losses'], result['examples_per_second'], result['num_towers'])


def _cache_path(config):
  return find_in_cache('autotune', fingerprint(config) + '.json')


def fingerprint(config: Config) -> str:
  """Returns a digest of what the fastest settings depend on: those of the run, the machine,
  TensorFlow, this source.
  """
  parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)
           if field.name not in _NOT_IN_FINGERPRINT}
  parts['machine'] = [
      platform.machine(),
      _read('/proc/cpuinfo', 'model name'),
      count_cores(),
      _list_gpus()
  ]
  # The package is not imported here: its files stand for its version.
  spec = importlib.machinery.PathFinder.find_spec('tensorflow')
  files = [spec.origin, os.stat(spec.origin).st_mtime_ns] if spec and spec.origin else []
  parts['tensorflow'] = [sys.version] + files
  parts['source'] = _digest_source()
  parts['flags'] = {name: value for name, value in os.environ.items()
                    if name.startswith(('TF_', 'XLA_', 'OMP_', 'CUDA_VISIBLE', 'NCCL_'))}
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _digest_source():
  """Returns a digest of the modules that a run may load."""
  digest = hashlib.sha256()
  for folder in _SOURCE:
    for path in sorted(glob.glob(os.path.join(_ROOT, folder, '**', '*.py'), recursive=True)):
      with open(path, 'rb') as file:
        digest.update(file.read())
  return digest.hexdigest()


def _list_gpus():
  folder = '/proc/driver/nvidia/gpus'
  names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  return [_read(os.path.join(folder, name, 'information'), 'Model') for name in names]


def _read(path, key):
  """Returns the first line of a file of the system that begins with `key`, or ''."""
  try:
    with open(path, encoding='utf-8') as file:
      return next((line.strip() for line in file if line.startswith(key)), '')
  except OSError:
    return ''


def _recall(path):
  """Returns what was found before, or None."""
  try:
    with open(path, encoding='utf-8') as file:
      kept = json.load(file)
    tuned = Tuned(kept['settings'], [TrialRow(*row) for row in kept['rows']])
    Config(**tuned.settings)
    tuned.format()
    return tuned
  except (OSError, ValueError, KeyError, TypeError, IndexError, ZeroDivisionError, UsageError):
    return None  # Nothing, or nothing of use: it is found anew.


def _remember(path, tuned):
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_whole(path, (json.dumps(dict(settings=tuned.settings, rows=tuned.rows), indent=1) +
                       '\n').encode())
  except OSError as error:
    print(f'autotune: not remembered, {path} cannot be written: {error.strerror}')
