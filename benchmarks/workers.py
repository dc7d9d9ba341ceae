"""Several workers: ours beside MultiWorkerMirroredStrategy, as processes on loopback.

  python -m benchmarks.workers            # a small CNN, a small MLP and an embedding, 2 workers
  python -m benchmarks.workers --nets=embedding_40k,embedding,embedding_4m
  python -m benchmarks.workers --nets=mlp --rounds=12 --json=workers.json
  python -m benchmarks.workers --kinds=towers --workers=4

  towers      the program of main.py: input, staging, guard, input wait and watch of peers,
              without its progress line
  estimator   Estimator + MultiWorkerMirroredStrategy in a ring, of TensorFlow 1.14
  horovod     a session's loop with Horovod's DistributedOptimizer and gloo, of TensorFlow 1.14, if
              Horovod is installed; 'horovod 0.1 ms' sets HOROVOD_CYCLE_TIME, whose default is 5
  loop        the same in a loop of tf.function, of TensorFlow 2

All workers of all kinds start once and wait; then, in each round, the kinds take the same number of
steps one after another. Every kind trains the same net from the same weights on the same examples
(see `worker_steps`), as the mean loss of the first 20 steps shows. Ratios compare steps per second
of the same round, ours to the best of the others.
"""

import argparse
import contextlib
import statistics
from typing import Any, Dict, List, Sequence

from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.machine import write_figures
from benchmarks.harness.processes import Processes, start_workers
from benchmarks.harness.worker_steps import NETS
from benchmarks.peers import horovod
from benchmarks.step import in_turn

OURS = 'towers'
# All kinds report the mean loss up to here; nets of this size have allocated their buffers by then.
FIRST_STEPS = 20
_COUNTED_STEPS = 40
_DEFAULT_NETS = 'cnn,mlp,embedding'


def kinds_of(version: str) -> List[str]:
  """Returns the kinds that run on a version of TensorFlow, ours first."""
  if not version.startswith('1.'):
    return [OURS, 'loop']
  return [OURS, 'estimator', *(['horovod', 'horovod 0.1 ms'] if horovod.is_installed() else [])]


def measure(net: str, kinds: Sequence[str], *, num_workers: int, batch_size: int, rounds: int,
            seconds: float, limit_seconds: float) -> Dict[str, Any]:
  """Returns the steps per second of each kind in each round, with set-up, CPU time and loss.

  A turn of the slowest kind takes about `seconds`; `batch_size` is that of each worker.
  """
  clusters: Dict[str, Processes] = {}
  found: Dict[str, Dict[str, Any]] = {}
  with contextlib.ExitStack() as opened:
    for kind in kinds:
      # One after another, so that set-ups do not slow each other down.
      cluster = clusters[kind] = start_workers(
          [kind, net, str(batch_size)], num_workers=num_workers, limit_seconds=limit_seconds)
      opened.callback(cluster.end)
      setup = max(report['seconds'] for report in cluster.wait())
      mean_loss = statistics.mean(
          report['mean_loss'] for report in cluster.take(FIRST_STEPS - 1))
      found[kind] = dict(setup_seconds=setup, mean_loss=mean_loss, steps_per_second=[],
                         cpu_milliseconds=[])

    slowest = max(report['seconds'] for cluster in clusters.values()
                  for report in cluster.take(_COUNTED_STEPS))
    num_steps = max(10, int(_COUNTED_STEPS * seconds / slowest))
    for index in range(rounds):
      for kind in in_turn(list(kinds), index):
        reports = clusters[kind].take(num_steps)
        turn_seconds = max(report['seconds'] for report in reports)
        cpu_seconds = sum(report['cpu_seconds'] for report in reports)
        found[kind]['steps_per_second'].append(num_steps / turn_seconds)
        found[kind]['cpu_milliseconds'].append(cpu_seconds / num_steps * 1e3)

    for cluster in clusters.values():
      cluster.leave()
  return dict(net=net, num_workers=num_workers, batch_size=batch_size, steps_per_turn=num_steps,
              kinds=found)


def best_peer(line: Dict[str, Any]) -> str:
  """Returns the fastest kind except ours, or '' if there is none."""
  others = [kind for kind in line['kinds'] if kind != OURS]
  return max(others, key=lambda kind: statistics.median(line['kinds'][kind]['steps_per_second']),
             default='')


def ratios(line: Dict[str, Any], peer: str) -> List[float]:
  """Returns how many steps ours takes while a peer takes one, in each round."""
  return [ours / other for ours, other in zip(line['kinds'][OURS]['steps_per_second'],
                                              line['kinds'][peer]['steps_per_second'])]


def format_spread(values: Sequence[float], form: str) -> str:
  """Returns the median, the smallest and the largest value, each in the %-format `form`."""
  return f'{form} ({form} to {form})' % (statistics.median(values), min(values), max(values))


def format_line(line: Dict[str, Any]) -> str:
  """Returns a table: a row for each kind, and the ratio."""
  rows = [f"{line['net']}, {line['num_workers']} workers of {line['batch_size']} examples, "
          f"turns of {line['steps_per_turn']} steps"]
  for kind, found in line['kinds'].items():
    rows.append(f"  {kind:14}  {format_spread(found['steps_per_second'], '%.1f'):28} steps/s   "
                f"CPU {statistics.median(found['cpu_milliseconds']):6.2f} ms a step of all workers"
                f"   set-up {found['setup_seconds']:5.1f} s   "
                f"mean loss of {FIRST_STEPS} steps {found['mean_loss']:.5f}")
  peer = best_peer(line)
  if peer:
    rows.append(f"  ours to {peer}, by rounds: {format_spread(ratios(line, peer), '%.2f')}")
  return '\n'.join(rows)


def main() -> None:
  """Prints a table for each net."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--nets', type=several(one_of(NETS)), default=_DEFAULT_NETS,
                      help='of ' + ','.join(NETS))
  parser.add_argument('--kinds', type=several(str),
                      help='default: all that run on this TensorFlow')
  parser.add_argument('--workers', type=at_least(1), default=2)
  parser.add_argument('--batch_size', type=at_least(1), default=64, help='of each worker')
  parser.add_argument('--rounds', type=at_least(1), default=6)
  parser.add_argument('--seconds', type=at_least(0, float), default=3, help='of a turn')
  parser.add_argument('--limit_seconds', type=at_least(1, float), default=600,
                      help='after which every worker ends itself')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args()
  from towers.tensorflow_v1 import tf
  from towers_tools.report import find_versions

  known = kinds_of(tf.__version__)
  kinds = flags.kinds or known
  if OURS not in kinds or not set(kinds) <= set(known):
    parser.error(f"--kinds={','.join(kinds)}: choose from {','.join(known)}, which run on "
                 f"TensorFlow {tf.__version__}, with {OURS} among them")
  if not (flags.kinds or horovod.is_installed()):
    print('Horovod is not installed.')
  lines = []
  for net in flags.nets:
    line = measure(net, kinds, num_workers=flags.workers, batch_size=flags.batch_size,
                   rounds=flags.rounds, seconds=flags.seconds, limit_seconds=flags.limit_seconds)
    lines.append(line)
    print(format_line(line), flush=True)
  if flags.json:
    write_figures(flags.json, dict(versions=find_versions(), lines=lines))


if __name__ == '__main__':
  main()
