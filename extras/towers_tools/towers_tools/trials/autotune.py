"""Autotune: finds the fastest settings for a model, its data and this machine, by trials.

  plain settings      a process of its own ──► losses, examples/s
  --xla=on            another process      ──►      …             other losses: rejected
  --staging_depth=0   another process      ──►      …             faster: kept, also in the trials
  …                                                               that follow

Each trial is `main.py` itself, with all flags of the run, for a few seconds in a process of its
own: one that crashes or hangs does no harm. The user's cache keeps the result, by a fingerprint of
all that it depends on. Settings that are not at their default are the user's choice, and stay.

Several workers run each trial together, a process of each, over the links of the run. They share
what they have found after each (see `exchange`), so all decide alike.
"""

import dataclasses
import os
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from towers.base.cores import count_cores, count_cores_of_each
from towers.base.files import sweep
from towers.base.json_files import read_sealed, write_sealed
from towers.base.output import write_line
from towers.base.paths import find_in_cache
from towers.base.usage_error import UsageError
from towers.placement.cluster import ALONE, Cluster
from towers.settings.config import Config
from towers_tools.trials.exchange import Exchange
from towers_tools.trials.fingerprint import fingerprint, list_gpus
from towers_tools.trials.timed_trial import TimedTrial, format_flags, join_trials, run_trial

_COMMAND = (sys.executable, '-m', 'towers')
_PILOT_STEPS = 8
_MOST_STEPS = 500
_SECONDS = 4.0  # For the steps of the trial of the plain settings.
_LIMIT_SECONDS, _LIMIT_FACTOR = 60.0, 4.0
_WORTH = 1.03  # A smaller speedup may be chance.
_TOLERANCE = 1e-3
_FUSION_MEGABYTES = (1.0, 4.0, 16.0, 64.0)

Settings = Dict[str, Any]


class TrialRow(NamedTuple):
  """A line of the table."""
  settings: Settings  # That differ from the plain ones.
  examples_per_second: float  # 0 if the trial failed.
  verdict: str  # In words; '' for the plain settings.


class Tuned(NamedTuple):
  """The result of all trials."""
  settings: Settings  # The fastest.
  rows: List[TrialRow]  # All trials, the plain one first.

  def format(self) -> str:
    """Returns the table."""
    names = [' '.join(format_flags(row.settings)) or 'plain' for row in self.rows]
    width = max(map(len, names))
    plain = self.rows[0].examples_per_second
    lines = []
    for name, row in zip(names, self.rows):
      line = (f'  {name:<{width}}  {row.examples_per_second:>12,.0f} examples/s  '
              f'{row.examples_per_second / plain:5.2f}  {row.verdict}')
      lines.append(line.rstrip())
    return '\n'.join(lines)


def autotune(config: Config, *, cluster: Cluster = ALONE, command: Sequence[str] = _COMMAND,
             seconds: float = _SECONDS) -> Config:
  """Returns the config with the fastest settings, from the cache or by trials.

  Raises:
    UsageError: the plain settings do not run; says why.
    WorkerGone: another worker is not there, or left.
  """
  tell = write_line if cluster.is_chief else lambda text: None
  # A trial that cannot start or goes on no longer ends by itself within this time.
  exchange = Exchange(cluster, limit_seconds=config.start_seconds + config.stall_seconds)
  path = find_in_cache('autotune', fingerprint(config, command, cluster) + '.json')
  tuned = _recall(path)
  known = exchange.share(tuned and tuned.settings)
  if tuned is not None and all(settings == tuned.settings for settings in known):
    tell(f'autotune: remembered in {path}\n{tuned.format()}')
  else:
    tuned = _run_trials(config, exchange, command, seconds, tell)
    _remember(path, tuned)
    tell(tuned.format())
  flags = ' '.join(format_flags(tuned.settings)) or 'no flags of speed at all'
  tell(f'autotune: the same as {flags}')
  return dataclasses.replace(config, autotune=False, **tuned.settings)


def _run_trials(config, exchange, command, seconds, tell):
  limit_seconds = None

  def run(settings, steps):
    trial = run_trial(config, settings, command=command, steps=steps, limit_seconds=limit_seconds,
                      has_result=exchange.cluster.is_chief)
    return join_trials([TimedTrial(*found) for found in exchange.share(
        list(trial), others_seconds=limit_seconds or 0.0)])

  pilot = run({}, _PILOT_STEPS)
  _refuse_broken(pilot)
  steps = seconds * pilot.examples_per_second / config.batch_size
  steps = int(min(max(steps, _PILOT_STEPS), _MOST_STEPS))
  together = ', of all workers together' if exchange.cluster.trains_together else ''
  tell(f'autotune: trials of {steps:,} steps in processes of their own{together}')

  def run_limited(settings):
    nonlocal limit_seconds
    started = time.monotonic()
    trial = run(settings, steps)
    if limit_seconds is None:
      limit_seconds = max(_LIMIT_SECONDS, _LIMIT_FACTOR * (time.monotonic() - started))
    return trial

  return tune(config, run_limited, exchange)


def tune(config: Config, run: Callable[[Settings], TimedTrial],
         exchange: Optional[Exchange] = None) -> Tuned:
  """Tries settings one after another, and keeps those that are faster with the same losses.

  Raises:
    UsageError: the plain settings do not run.
  """
  exchange = exchange or Exchange(ALONE, limit_seconds=0.0)
  plain = run({})
  _refuse_broken(plain)
  rows = [TrialRow({}, plain.examples_per_second, '')]
  best: Settings = {}
  speed = plain.examples_per_second
  found = list_alternatives(config, plain.num_towers)
  if exchange.cluster.trains_together:
    found += list_fusions(config, plain.all_reduce_bytes)
  for alternatives in exchange.share(found)[0]:
    kept = best
    for alternative in alternatives:
      settings = dict(kept, **alternative)
      trial = run(settings)
      verdict = trial.error or _compare(trial.losses, plain.losses)
      if not verdict and trial.examples_per_second > _WORTH * speed:
        best, speed, verdict = settings, trial.examples_per_second, 'faster'
      rows.append(TrialRow(settings, trial.examples_per_second, verdict or 'not faster'))
  return Tuned(best, rows)


def list_alternatives(config: Config, num_towers: int) -> List[List[Settings]]:
  """Returns lists of alternatives in the order of their trials; at most one of each list is kept.
  """
  cores = count_cores()
  threads = {(cores, 1), (1, cores), (cores, count_cores_of_each(num_towers)), (2 * cores, 1)}
  placements: Sequence[str] = ('first', 'balanced', 'replicated')
  if num_towers == 1:
    # On virtual CPU devices a single tower's weights are beside it in any case.
    on_gpu = config.device == 'gpu' or (config.device == 'auto' and list_gpus())
    placements = ('first',) if on_gpu else ()
  found: List[List[Settings]] = [
      [dict(xla='on')],
      [dict(graph_rewriter='on'), dict(graph_rewriter='off')],
      [dict(inter_threads=inter, intra_threads=intra) for inter, intra in sorted(threads)],
      [dict(staging_depth=depth) for depth in (0, 2)],
      [dict(variables=placement) for placement in placements],
  ]
  chosen = {field.name for field in dataclasses.fields(config)
            if getattr(config, field.name) != field.default}
  return [alternatives for alternatives in found
          if alternatives and not chosen & set(alternatives[0])]


def list_fusions(config: Config, all_reduce_bytes: int) -> List[List[Settings]]:
  """Returns the sizes of fused gradients to try, as alternatives: none that changes nothing."""
  default = Config.fusion_megabytes
  if config.fusion_megabytes != default:
    return []
  tried = []
  for size, smaller in zip(_FUSION_MEGABYTES, (0.0,) + _FUSION_MEGABYTES):
    # From the first size on that holds all gradients, nothing changes.
    least = size if size < default else smaller
    if size != default and all_reduce_bytes > 1e6 * least:
      tried.append(dict(fusion_megabytes=size))
  return [tried] if tried else []


def _compare(losses, expected):
  """Returns '' if losses agree but for rounding, else how they disagree."""
  for index, (loss, other) in enumerate(zip(losses, expected)):
    # NaN compares false, and so disagrees.
    if not abs(loss - other) <= _TOLERANCE * max(abs(other), 1e-2):
      return f'disagrees: loss {loss:.5g} in step {index + 1}, not {other:.5g}'
  if len(losses) != len(expected):
    return f'disagrees: {len(losses)} losses, not {len(expected)}'
  return ''


def _refuse_broken(trial):
  if trial.error:
    raise UsageError(f'autotune: the settings as they are do not run: {trial.error}')


def _recall(path) -> Optional[Tuned]:
  """Returns the result of earlier trials, or None."""
  try:
    kept = read_sealed(path, dict(settings={str: object}, rows=[[object]]))
    tuned = Tuned(kept['settings'], [TrialRow(*row) for row in kept['rows']])
    Config(**tuned.settings)
    tuned.format()
    return tuned
  except FileNotFoundError:
    return None
  except (OSError, ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
    write_line(f'WARNING: {path} cannot be read ({error}): the trials are made again')
    return None


def _remember(path, tuned):
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sweep(os.path.dirname(path))
    write_sealed(path, dict(settings=tuned.settings, rows=tuned.rows), indent=1)
  except OSError as error:
    write_line(f'autotune: not remembered, {path} cannot be written: {error.strerror}')
