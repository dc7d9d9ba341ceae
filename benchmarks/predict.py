"""One row: what `session.predict` of it takes, beside a bare `session.run` of the same function.

  python -m benchmarks.predict
  python -m benchmarks.predict --towers=1,2,8 --calls=1000 --json=predict.json

A function of three weights, on one row. The calls take turns with those of a bare session, whose
graph is the function and a placeholder, and the table shows the median of each. The first call
builds the graph that the later ones are fed to.

  in a session     `session.predict` between training steps
  in a callback    the same in `on_validation` of `towers.train`
"""

import argparse
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from benchmarks.harness.flags import at_least, path_to_write, several
from benchmarks.harness.machine import describe_machine, write_figures
from benchmarks.harness.step_table import format_machine

ROWS = np.random.RandomState(0).randn(64, 3).astype('f')


def net(rows: Any) -> Any:
  """Returns what is predicted of rows `[n, 3]`, `[n]`."""
  from towers.tensorflow_v1 import tf
  return tf.squeeze(tf.matmul(rows, tf.get_variable('weights', [3, 1])), 1)


def build(num_towers: int) -> Any:
  """Returns a program on virtual CPU devices that trains the three weights."""
  import towers
  from towers.tensorflow_v1 import tf
  with tf.Graph().as_default():
    return towers.Program(
        lambda batch, is_training: tf.square(net(batch[0]) - batch[1]), batch_size=8,
        train=towers.from_arrays(ROWS, ROWS.sum(1)), num_towers=num_towers, device='cpu',
        validation=towers.from_arrays(ROWS, ROWS.sum(1), name='validation'),
        optimizer=tf.train.AdamOptimizer(0.1))


def measure(session: Any, num_calls: int) -> Dict[str, float]:
  """Returns milliseconds of the first call, and the medians of later ones and of bare runs."""
  from towers.tensorflow_v1 import tf
  with tf.Graph().as_default() as graph:
    rows = tf.placeholder(tf.float32, [None, 3])
    outputs = net(rows)
    with tf.Session(graph=graph) as bare:
      bare.run(tf.global_variables_initializer())
      first, _ = _time(lambda: session.predict(ROWS[:1], net))
      kinds: List[Tuple[Callable[[], Any], List[float]]] = [
          (lambda: session.predict(ROWS[:1], net), []),
          (lambda: bare.run(outputs, {rows: ROWS[:1]}), [])]
      for _ in range(num_calls):
        for call, times in kinds:
          times.append(_time(call)[0])
  predict, run = [statistics.median(times) for _, times in kinds]
  return dict(first=first, predict=predict, bare=run)


def _time(call):
  begun = time.perf_counter()
  found = call()
  return (time.perf_counter() - begun) * 1e3, found


def measure_both(num_towers: int, num_calls: int) -> Dict[str, Dict[str, float]]:
  """Returns what `measure` finds in a session of one's own, and in a callback of a run."""
  import towers
  lines = {}
  with build(num_towers).session() as session:
    session.train()
    lines['in a session'] = measure(session, num_calls)

  class Measures(towers.Callback):
    def on_validation(self, run):
      lines['in a callback'] = measure(run.session, num_calls)

  towers.train(build(num_towers), steps=2, quiet=True, validate_every='2steps',
               callbacks=[Measures()])
  return lines


def main(arguments: Optional[Sequence[str]] = None) -> None:
  """Prints a table for each number of towers."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2,4')
  parser.add_argument('--calls', type=at_least(1), default=200)
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args(arguments)
  content: Dict[str, Any] = dict(machine=describe_machine(), lines=[])
  print(format_machine(content['machine']), flush=True)
  for num_towers in flags.towers:
    for where, line in measure_both(num_towers, flags.calls).items():
      content['lines'].append(dict(line, num_towers=num_towers, where=where))
      print('{} towers, {:14} first call {first:7.1f} ms, then {predict:.3f} ms; bare {bare:.3f} '
            'ms: {ratio:.2f} times'.format(num_towers, where + ':', **line,
                                           ratio=line['predict'] / line['bare']), flush=True)
  if flags.json:
    write_figures(flags.json, content)


if __name__ == '__main__':
  sys.exit(main())
