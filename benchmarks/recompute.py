"""Recompute: the memory that it saves and the time that it takes, setting by setting.

  python -m benchmarks.recompute                                  # ResNet-56, some minutes
  python -m benchmarks.recompute --model=resnet20 --batch_size=8 --settings=none,auto,4 --rounds=5

One tower takes a step of each setting in turn, so a machine that slows down slows all of them. The
memory is that of live tensors in a traced step, and the time that of the processor as well.
"""

import argparse
import contextlib
import statistics
import time
from typing import Any, Dict, List, Tuple

from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, path_to_write
from benchmarks.harness.live_memory import measure_peak
from benchmarks.harness.program import open_program

_TRACED = 3
_NUM_EXAMPLES = 512


def measure(model: str, settings: List[str], *, batch_size: int, rounds: int
            ) -> List[Dict[str, Any]]:
  """Returns a line for each setting; times are relative to the first one's, round by round.

  Args:
    model: of the zoo.
    settings: of `recompute`.
    batch_size: of the one tower.
    rounds: steps that are timed of each setting.
  """
  from tensorflow_v1 import tf
  from towers.data import load_synthetic
  from towers.training.settings.config import Config

  data_set = load_synthetic(num_train=_NUM_EXAMPLES)
  lines: List[Dict[str, Any]] = []
  programs = []
  with contextlib.ExitStack() as stack:
    for setting in settings:
      config = Config(model=model, batch_size=batch_size, staging_depth=0, validation='none',
                      recompute=setting)
      # Entered and left in turn: each is in its own graph.
      steps = stack.enter_context(open_program(config, data_set, num_towers=1))
      steps.start(0)
      program, session = steps.program, steps.session
      peak = min(measure_peak(session, program.train_op) for _ in range(_TRACED))
      [tower] = program.towers
      lines.append(dict(model=model, recompute=setting, batch_size=batch_size, peak_bytes=peak,
                        num_segments=tower.recomputed.num_segments if tower.recomputed else 1,
                        tensorflow_version=tf.__version__))
      programs.append((session, program.train_op))
    times: List[List[Tuple[float, float]]] = [[] for _ in settings]
    for _ in range(rounds):
      for (session, train_op), own in zip(programs, times):
        began = time.perf_counter(), time.process_time()
        session.run(train_op)
        own.append((time.perf_counter() - began[0], time.process_time() - began[1]))
  for line, own in zip(lines, times):
    line['step_milliseconds'] = 1e3 * statistics.median(wall for wall, _ in own)
    line['time_ratio'], line['cpu_ratio'] = [statistics.median(
        one[clock] / first[clock] for one, first in zip(own, times[0])) for clock in (0, 1)]
    line['peak_ratio'] = line['peak_bytes'] / lines[0]['peak_bytes']
  return lines


def main() -> None:
  """Prints a line for each setting."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default='resnet56')
  parser.add_argument('--batch_size', type=at_least(1), default=32)
  parser.add_argument('--settings', type=lambda text: text.split(','), default=['none', 'auto'])
  parser.add_argument('--rounds', type=at_least(1), default=20)
  parser.add_argument('--json', type=path_to_write, help='file to write all lines to')
  flags = parser.parse_args()
  lines = measure(flags.model, flags.settings, batch_size=flags.batch_size, rounds=flags.rounds)
  for line in lines:
    print(f"recompute={line['recompute']:5} {line['num_segments']:3} segments   "
          f"{line['peak_bytes'] / 1e6:7.1f} MB, {line['peak_ratio']:.2f}   "
          f"{line['step_milliseconds']:7.1f} ms, {line['time_ratio']:.2f} "
          f"(CPU {line['cpu_ratio']:.2f})", flush=True)
  if flags.json:
    write_figures(flags.json, lines)


if __name__ == '__main__':
  main()
