"""A run on a worker's server happens once, also where TensorFlow takes it for a repeated one."""

import pytest

from tests.harness.in_process_cluster import find_ports
from towers.placement.cluster import Cluster
from towers.tensorflow_v1 import Call, ServerSession, tf
from towers.workers.worker import Worker

# What TensorFlow 2.21 has said after 28,068 steps.
TWICE = ('The same RunGraph (Worker) request was received twice.  graph_handle: "0000000000000009" '
         'step_id: 100850999750589930')


@pytest.fixture
def session():
  """The session of a worker that is alone, so that it waits for none."""
  worker = Worker(Cluster([f'127.0.0.1:{port}' for port in find_ports(1)]), tf.ConfigProto())
  with tf.Graph().as_default(), worker.open_session() as session:
    yield session


def refuse(monkeypatch, messages):
  run = tf.Session._call_tf_sessionrun

  def refuse_first(*arguments):
    if messages:
      raise tf.errors.AbortedError(None, None, messages.pop())
    return run(*arguments)

  monkeypatch.setattr(tf.Session, '_call_tf_sessionrun', refuse_first)


def test_a_run_that_is_refused_as_a_repeated_one_happens_once(session, monkeypatch):
  assert isinstance(session, ServerSession)
  counter = tf.get_variable('counter', [], tf.int32, tf.zeros_initializer())
  add = counter.assign_add(1)
  session.run(tf.global_variables_initializer())
  call = Call(session, [add])
  call.prepare()
  messages = []
  refuse(monkeypatch, messages)
  for number, run in enumerate([call, lambda: session.run([add]), call]):
    messages += [TWICE] * number
    assert run() == [number + 1]
  assert session.run(counter) == 3 and not messages


def test_any_other_end_of_a_run_is_told(session, monkeypatch):
  refuse(monkeypatch, ['The same RecvBuf (GrpcWorker) request was received twice.'])
  with pytest.raises(tf.errors.AbortedError, match='RecvBuf'):
    session.run(tf.constant(1))
