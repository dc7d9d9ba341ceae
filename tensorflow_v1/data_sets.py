"""tf.data pipelines that run as they are written, and by the threads that are meant."""

from typing import Any, Callable

from tensorflow.python.data.ops import dataset_ops

from tensorflow_v1.load import IS_1, tf

if IS_1:
  from tensorflow.python.data.experimental.ops import batching
else:
  from tensorflow.python.data.ops import map_op


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function of a tf.data pipeline that runs, with all that it calls, as its Python says.

  By default 2.x rewrites the Python first, so that its `if` may ask a tensor, which 1.14 does not
  know: a third of a second before the first step.
  """
  return function if IS_1 else tf.autograph.experimental.do_not_convert(function)


def map_by_reader(dataset: Any, function: Callable[..., Any]) -> Any:
  """`dataset.map(function)`, run by the thread that asks for an element; by default it hands the
  work to another.
  """
  kind = getattr(dataset_ops, 'MapDataset', None) or map_op._MapDataset
  return dataset_ops.DatasetV1Adapter(kind(dataset, function, use_inter_op_parallelism=False))


def get_next_by_reader(iterator: Any) -> Any:
  """`iterator.get_next()` of dense tensors, run by the thread that asks; by default it hands the
  work to another.

  While the iterator has none, that thread waits and runs no other op. So its pipeline must not need
  the session's threads, all of which may wait (`with_own_thread`).
  """
  types = tf.data.get_output_types(iterator)
  return tf.nest.pack_sequence_as(types, tf.raw_ops.IteratorGetNextSync(
      iterator=iterator._iterator_resource, output_types=tf.nest.flatten(types),
      output_shapes=tf.nest.flatten(tf.data.get_output_shapes(iterator))))


def unbatch(dataset: Any) -> Any:
  """Returns the dataset of the rows of dense batches, of the same structure.

  1.14's own `unbatch` first maps a function over the batches, for the sake of sparse tensors, and
  fails there if they are tuples of one tensor.
  """
  if IS_1:
    return dataset_ops.DatasetV1Adapter(batching._UnbatchDataset(dataset))
  return dataset.unbatch()


def with_own_thread(dataset: Any) -> Any:
  """Returns the dataset with a thread that does what its functions would ask the session's threads
  for.
  """
  if IS_1:
    return dataset_ops.DatasetV1Adapter(dataset_ops._PrivateThreadPoolDataset(dataset, 1))
  options = tf.data.Options()
  options.threading.private_threadpool_size = 1
  return dataset.with_options(options)


def plain_data_options() -> Any:
  """Returns options with which tf.data runs a pipeline as it was written.

  By default it rewrites the pipeline when it starts, and for that copies all arrays into a graph of
  its own. On 2.x it also tunes each iterator with a thread that can sleep through its own end:
  closing a session of 16 iterators took up to 20 s, instead of 0.03 s without it.
  """
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  if hasattr(options, 'autotune'):
    options.autotune.enabled = False
  else:
    options.experimental_optimization.autotune = False
  return options
