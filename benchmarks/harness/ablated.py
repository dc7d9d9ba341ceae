"""main.py with a part of a step left out or exchanged, for `benchmarks.gpu --ablate`.

  python -m benchmarks.harness.ablated 'no guard' --model=resnet50 --steps=40
"""

import sys
from typing import Callable, Dict


def _leave_guard_out():
  from towers.tensorflow_v1 import tf
  from towers.update import apply

  def update(forward_is_over, build, writes):
    for write in writes.late:
      write.wait_for(forward_is_over.op)
    with tf.control_dependencies([forward_is_over]):
      ends = build()
    with tf.control_dependencies(ends):
      return tf.constant(True)

  apply.gates_on_device = lambda *_: False
  apply.build_is_finite = lambda reduced, _: tf.equal(reduced.loss, reduced.loss)
  apply.run_if = update


def _gate_on_host():
  from towers.update import apply
  apply.gates_on_device = lambda *_: False


def _run_without_callables():
  """Exchanges each callable of a session for a call of `run`, which looks its fetches up anew."""
  from towers.tensorflow_v1 import tf

  def make_callable(session, fetches, feed_list=(), **_):
    return lambda *values: session.run(fetches, dict(zip(feed_list or (), values)))

  tf.Session.make_callable = make_callable


PARTS: Dict[str, Callable[[], None]] = {
    'no guard': _leave_guard_out,
    'gate on the host': _gate_on_host,
    'session.run': _run_without_callables,
}

if __name__ == '__main__':
  PARTS[sys.argv.pop(1)]()
  from towers.cli.command_line import main
  sys.exit(main(sys.argv))
