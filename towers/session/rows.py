"""Rows: what a user gives to compute on, batch by batch, without training."""

import contextlib
import itertools
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.arrays import Gather, from_arrays
from towers.data.examples import DataSet, Examples
from towers.input.feed import Feed
from towers.input.parse import is_gathered
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.settings.arguments import check_examples, describe
from towers.tensorflow_v1 import data_sets, private_session, tf


class Rows(NamedTuple):
  """Batches of rows to compute on."""
  # An array or a tensor for each part of a batch, `[batch, ...]`, in the structure of the examples.
  template: Any
  # For each batch its arrays, in the order of `tf.nest.flatten`, all rows of them real.
  batches: Iterator[List[np.ndarray]]
  # Whether a later batch may have rows of other sizes than the first, the template.
  may_vary: bool = False


def describe_part(part: Any) -> Tuple[str, List[Optional[int]]]:
  """Returns the dtype of an array or a tensor, and the sizes of its rows, None where any is."""
  return tf.as_dtype(part.dtype).name, tf.TensorShape(part.shape).as_list()[1:]


def draw_structure(template: Any) -> str:
  """Returns a structure with a word for each of its parts, as '(array, array)'."""
  array = '<array>'
  return str(tf.nest.map_structure(lambda part: array, template)).replace(repr(array), 'array')


def deal_batch(feed: Feed, batch: Any) -> Tuple[int, List[Dict[Any, Any]]]:
  """Returns the rows of a global batch that is given by hand, and what feeds each micro-batch.

  If it does not fit the examples, or is none, or larger than the program's, it is a UsageError.
  """
  plan, templates = feed.inputs.plan, feed.templates
  taken = templates[0].tensors
  least, numbers = plan.batch_size, f'batch_size={plan.batch_size}'
  if not plan.is_static:
    least, numbers = 1, f'1 to {numbers}'
  wanted = f'{tf.nest.map_structure(describe_part, taken)}, {numbers} rows of each'
  try:
    tf.nest.assert_same_structure(taken, batch)
    arrays = list(map(np.asarray, tf.nest.flatten(batch)))
  except (TypeError, ValueError, NotImplementedError):
    given = tf.nest.map_structure(describe, batch)
    raise UsageError(f'session.train got {given!s:.200}, and takes arrays in the structure {wanted}'
                     f': write session.train({draw_structure(taken)}).') from None
  sizes = {len(array) if array.ndim else 0 for array in arrays}
  for index, (array, part) in enumerate(zip(arrays, tf.nest.flatten(taken))):
    dtype = part.dtype.as_numpy_dtype
    if array.ndim == 0 or not part.shape[1:].is_compatible_with(array.shape[1:]) or not (
        np.can_cast(array.dtype, dtype, 'same_kind')):
      raise UsageError(f'Component {index} of the batch is {array.dtype} of shape {array.shape}: '
                       f'session.train takes {wanted}.')
    arrays[index] = array.astype(dtype, copy=False)
  if len(sizes) > 1 or not least <= max(sizes) <= plan.batch_size:
    raise UsageError(f'The batch has {sorted(sizes)} rows: give as many of each component, '
                     f'{numbers}.')
  [count], size, feeds = sizes, plan.micro_batch_size, []
  for begin in range(0, count, size):
    rows = [array[begin:begin + size] for array in arrays]
    ends = np.cumsum(plan.shares(len(rows[0])))
    fed: Dict[Any, Any] = {}
    for template, end, share in zip(templates, ends, plan.shares(len(rows[0]))):
      own = [part[plan.rank::plan.num_workers][end - share:end] for part in rows]
      # An empty tower holds a row all the same.
      given = [*own, share] if share else [*(part[-1:] for part in rows), 0]
      fed.update(pair for pair in zip(template.flatten(), given) if tf.is_tensor(pair[0]))
    feeds.append(fed)
  return count, feeds


@contextlib.contextmanager
def open_rows(given: Any, batch_size: int) -> Iterator[Rows]:
  """Opens what a user gives to compute on: so many rows at a time of what comes in no batches.

  It is Examples, or an iterator of batches, or what `from_arrays` takes, a structure of arrays.
  """
  if hasattr(given, '__next__'):
    first = next(given, None)
    if first is None:
      raise UsageError('The iterator has no batch: give batches, each a structure of arrays.')
    yield Rows(tf.nest.map_structure(np.asarray, first), (
        list(map(np.asarray, tf.nest.flatten(batch)))
        for batch in itertools.chain([first], given)), may_vary=True)
    return
  if data_sets.is_dataset(given) or isinstance(given, (DataSet, Examples)) or callable(given):
    check_examples('examples', given)
  examples = given if isinstance(given, Examples) else from_arrays(given)
  gather = examples.parse_batch
  if isinstance(gather, Gather) and is_gathered(examples):
    yield Rows(gather.cut(slice(None), examples.arrays), (
        tf.nest.flatten(gather.cut(slice(first, first + batch_size), examples.arrays))
        for first in range(0, examples.num_examples, batch_size)))
    return
  examples = examples._replace(buckets=None)  # They would change the order.
  with tf.Graph().as_default() as graph:
    plan = build_plan(num_examples=examples.num_examples, num_towers=1, name=examples.name,
                      batch_size=min(batch_size, examples.num_examples))
    inputs = build_inputs(examples, plan=plan, mode='split')
    [batch] = inputs.next_batches()
    fetches = [tf.nest.flatten(batch.tensors), tf.convert_to_tensor(batch.num_examples)]
  with private_session(graph) as session:
    session.run(inputs.initializer, inputs.feed_dict(0))

    def read():
      for _ in range(plan.steps_per_epoch):
        arrays, count = session.run(fetches)
        if count:
          yield [array[:count] for array in arrays]

    yield Rows(batch.tensors, read())
