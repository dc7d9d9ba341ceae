"""Command line: from flags to one job, and from what goes wrong to an exit code.

TensorFlow is imported, with the jobs, after flags and files have been read: mistakes in them show
at once.
"""

import dataclasses
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from absl import flags

from towers.base.output import flush_streams, open_closed_streams, quieted
from towers.base.usage_error import ToldError, UsageError, check_parameters
from towers.cli.flags import parse_flags
from towers.cli.user_functions import give_function, give_predict, load_function
from towers.data import DataSet, Examples, LoadSettings, load
from towers.extras import load_extra
from towers.placement.cluster import read_cluster
from towers.placement.xla import set_xla
from towers.process.signals import Signals
from towers.process.startup import Startup
from towers.settings.config import Config
from towers.settings.setting import is_function
from towers.training.outputs import check_outputs, lock_outputs
from towers.training.reporting.result import write_result


def main(arguments: Sequence[str], model: Optional[Callable[..., Any]] = None,
         data: Optional[Callable[[], Any]] = None,
         predict: Optional[Callable[..., Any]] = None) -> int:
  """Runs the command line `arguments`, `sys.argv`; returns the exit code.

  `model`, `data` and `predict` are those of a program of one's own, see `towers.main`.

  0: done. 1: --check found that towers differ, or --doctor found a fault. 2: a mistake to correct.
  3: the run could not go on. 75: another worker left. 129, 130 and 143: ended by SIGHUP, Ctrl-C
  and SIGTERM.
  """
  open_closed_streams()
  with Signals() as signals, Startup(time.monotonic()) as startup:
    try:
      if model is None and data is None:
        config, command = parse_flags(arguments), [sys.executable, '-m', 'towers']
        flags.FLAGS.mark_as_parsed()  # Those of a module that it names have their defaults.
      else:
        config = _parse_own(arguments, model=model, data=data)
        command = _find_command(arguments[0])
        if config is not None:
          give_predict(config.model, predict)
      return 0 if config is None else _run(config, startup, signals, command)
    except ToldError as error:
      return error.tell()
    finally:
      flush_streams()


def _parse_own(arguments: Sequence[str], **given: Optional[Callable[..., Any]]) -> Optional[Config]:
  """Returns the config of a program that has a model or data of its own, and flags."""
  config = parse_flags(arguments, others=flags.FLAGS)
  if config is None:
    return None
  names: Dict[str, Any] = {}
  for name, function in given.items():
    if function is not None:
      if getattr(config, name) != getattr(Config, name):
        raise UsageError(f'{name}={getattr(config, name)}: this program has its own {name}; leave '
                         'the flag out.')
      names[name] = give_function(function)
  return dataclasses.replace(config, **names)


def _find_command(script: str) -> List[str]:
  """Returns what starts the script of this process again, with the flags that are its own."""
  spec = getattr(sys.modules.get('__main__'), '__spec__', None)  # With `python -m`.
  start = [os.path.abspath(script)] if spec is None else ['-m', spec.name]
  own = [flags.FLAGS[name] for name in flags.FLAGS if flags.FLAGS[name].present]
  return [sys.executable, *start, *(
      argument for flag in own for argument in flag.serialize().splitlines())]


def _run(config: Config, startup: Startup, signals: Signals, command: Sequence[str]) -> int:
  """Does the job that a config names; returns the exit code. `command` starts the program again."""
  if config.doctor:
    return 0 if load_extra('--doctor')() else 1
  if config.predict:
    check_outputs(result_file=config.result_file, report=config.report)
    data_set = None if config.export_dir else load_data(config)
    from towers.cli import jobs
    jobs.predict(config, data_set)
    return 0
  cluster = read_cluster(os.environ)
  config = config.for_worker(cluster)
  trains = not (config.check or config.find_batch or config.input_only)
  with quieted(config.quiet and trains), \
      lock_outputs(config, cluster, export_dir=config.export_dir):
    if config.autotune:
      config = load_extra('--autotune')(config, cluster=cluster, command=command)
    set_xla(config.xla, os.environ)
    if config.deterministic:  # What XLA compiles is cached by it.
      os.environ['TF_CUDNN_DETERMINISTIC'] = '1'
    if cluster.trains_together:
      startup.limit(config.start_seconds, is_of_idleness=True)
    data_set = load_data(config)
    from towers.cli import jobs
    if config.check:
      return 0 if jobs.check(config, data_set) else 1
    if config.find_batch or config.input_only:
      found = (jobs.find_batch(config, data_set, command) if config.find_batch else
               jobs.measure_input(config, data_set))
      if config.result_file:
        write_result(config.result_file, found)
    else:
      jobs.train(config, cluster, data_set, startup, signals)
  return 0


def load_data(config: Config) -> DataSet:
  """Returns the data set of a config, or what its own function returns."""
  if not is_function(config.data):
    return load(config.data, **{name: getattr(config, name) for name in LoadSettings._fields})
  function = load_function('data', config.data)
  check_parameters(function, f'data={config.data}', fix='give its parameters defaults')
  loaded = function()
  if isinstance(loaded, DataSet):
    return loaded
  splits = loaded if type(loaded) is tuple else (loaded,)
  if len(splits) not in (1, 2) or not all(isinstance(split, Examples) for split in splits):
    from towers.settings.arguments import describe
    raise UsageError(f'data={config.data} returned {describe(loaded)}: return towers.Examples, as '
                     'of towers.from_arrays, or a pair of them for training and validation.')
  return DataSet(*splits)
