"""Rows: what a user gives to compute on, batch by batch, without training."""

import contextlib
import itertools
from typing import Any, Iterator, List, NamedTuple

import numpy as np

from tensorflow_v1 import is_dataset, tf
from towers.arguments import check_examples
from towers.base.usage_error import UsageError
from towers.data.arrays import from_arrays
from towers.data.examples import DataSet, Examples
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan


class Rows(NamedTuple):
  """Batches of rows to compute on.

  Attributes:
    template: a tensor for each part of a batch, `[batch, ...]`, in the structure of the examples.
    batches: for each batch its arrays, in the order of `tf.nest.flatten`, all rows of them real.
  """
  template: Any
  batches: Iterator[List[np.ndarray]]

  def describe(self) -> str:
    """Returns structure, dtypes and shapes of a batch."""
    return str(tf.nest.map_structure(
        lambda tensor: (tensor.dtype.name, str(tensor.shape[1:])), self.template))


@contextlib.contextmanager
def open_rows(given: Any, batch_size: int) -> Iterator[Rows]:
  """Opens what a user gives to compute on.

  Args:
    given: Examples; or an iterator of batches; or what `from_arrays` takes, a structure of arrays.
    batch_size: rows at a time, of what does not come in batches.
  """
  if hasattr(given, '__next__'):
    first = next(given, None)
    if first is None:
      raise UsageError('The iterator has no batch: give batches, each a structure of arrays.')
    arrays = tf.nest.map_structure(np.asarray, first)
    with tf.Graph().as_default():
      template = tf.nest.map_structure(
          lambda array: tf.placeholder(array.dtype, [None, *array.shape[1:]]), arrays)
    yield Rows(template, (list(map(np.asarray, tf.nest.flatten(batch)))
                          for batch in itertools.chain([first], given)))
    return
  if is_dataset(given) or isinstance(given, DataSet) or callable(given):
    check_examples('examples', given)
  examples = given if isinstance(given, Examples) else from_arrays(given)
  examples = examples._replace(buckets=None)  # They would change the order.
  with tf.Graph().as_default() as graph:
    plan = build_plan(num_examples=examples.num_examples, num_towers=1, name=examples.name,
                      batch_size=min(batch_size, examples.num_examples))
    inputs = build_inputs(examples, plan=plan, mode='split')
    [batch] = inputs.next_batches()
    fetches = [tf.nest.flatten(batch.tensors), tf.convert_to_tensor(batch.num_examples)]
  with tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    session.run(inputs.initializer, inputs.feed_dict(0))

    def read():
      for _ in range(plan.steps_per_epoch):
        arrays, count = session.run(fetches)
        if count:
          yield [array[:count] for array in arrays]

    yield Rows(batch.tensors, read())
