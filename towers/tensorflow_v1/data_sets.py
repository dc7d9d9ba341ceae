"""tf.data pipelines that run as written, on the threads of their callers' choice."""

from typing import Any, Callable, List, Optional

from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import nest

from towers.tensorflow_v1.load import IS_1, tf
from towers.tensorflow_v1.types import Dataset, Graph, Operation, Tensor

if IS_1:
  from tensorflow.python.data.experimental.ops import batching
else:
  from tensorflow.python.data.ops import map_op


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a tf.data function that runs, with all its callees, without AutoGraph and XLA.

  By default 2.x first rewrites the Python so that `if` works on tensors, which 1.14 does not. That
  takes a third of a second before the first step. XLA would compile each new size of a batch.
  """
  def call(*arguments):
    with tf.xla.experimental.jit_scope(compile_ops=False):
      return function(*arguments)

  return call if IS_1 else tf.autograph.experimental.do_not_convert(call)


def flatten_element(element: Any) -> List[Any]:
  """Returns the tensors of an element as tf.data has it: a list inside of it is one, stacked."""
  return nest.flatten(tuple(element) if isinstance(element, list) else element)


def map_by_reader(dataset: Dataset, function: Callable[..., Any]) -> Dataset:
  """Returns `dataset.map(function)`, run by the thread that asks for an element."""
  kind = getattr(dataset_ops, 'MapDataset', None) or map_op._MapDataset
  return dataset_ops.DatasetV1Adapter(kind(dataset, function, use_inter_op_parallelism=False))


def get_next_by_reader(iterator: Any) -> Any:
  """Returns `iterator.get_next()` of dense tensors, run by the thread that reads.

  The default is another thread. While the iterator has no element, the reading thread waits and
  runs no other op. So the pipeline must not need the session's threads, since all of them may be
  waiting (see `with_own_thread`).
  """
  types = tf.data.get_output_types(iterator)
  return tf.nest.pack_sequence_as(types, tf.raw_ops.IteratorGetNextSync(
      iterator=iterator._iterator_resource, output_types=tf.nest.flatten(types),
      output_shapes=tf.nest.flatten(tf.data.get_output_shapes(iterator))))


def unbatch(dataset: Dataset) -> Dataset:
  """Returns the dataset of the rows of dense batches, of the same structure.

  On 1.14 `dataset.unbatch` first maps a function over the batches, for sparse tensors, and fails
  there on tuples of one tensor.
  """
  if IS_1:
    return dataset_ops.DatasetV1Adapter(batching._UnbatchDataset(dataset))
  return dataset.unbatch()


def with_own_thread(dataset: Dataset) -> Dataset:
  """Returns the dataset with a thread of its own, on which its functions run."""
  if IS_1:
    return dataset_ops.DatasetV1Adapter(dataset_ops._PrivateThreadPoolDataset(dataset, 1))
  options = tf.data.Options()
  options.threading.private_threadpool_size = 1
  return dataset.with_options(options)


def plain(dataset: Dataset) -> Dataset:
  """Returns the data set as a pipeline that runs as written.

  By default tf.data rewrites the pipeline when it starts, and copies all arrays into a graph for
  that. On 2.x it also tunes each iterator with a thread that can sleep through its own end: closing
  a session of 16 iterators took up to 20 s, and 0.03 s without it.
  """
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  if hasattr(options, 'autotune'):
    options.autotune.enabled = False
  else:
    options.experimental_optimization.autotune = False
  return dataset.with_options(options)


def is_dataset(value: Any) -> bool:
  """Returns whether a value is a data set, of either version of tf.data's class."""
  return isinstance(value, dataset_ops.DatasetV2)


def find_last_op(dataset: Dataset) -> Optional[Operation]:
  """Returns the op that makes a data set from its inputs; None for one made in eager mode."""
  # Without a graph, a tensor of 1.14 has None there, and one of 2.x raises.
  variant = dataset._variant_tensor
  return variant.op if isinstance(getattr(variant, 'graph', None), Graph) else None


def get_constant(tensor: Tensor) -> Any:
  """Returns the value of a scalar tensor that is known without a run, or None."""
  value = tf.get_static_value(tensor)
  return None if value is None else value.item()


def copy_dataset(dataset: Dataset) -> Dataset:
  """Returns a copy of a data set in the default graph, with a copy of the ops that it needs."""
  variant = dataset._variant_tensor
  needed = tf.graph_util.extract_sub_graph(variant.graph.as_graph_def(), [variant.op.name])
  [copied] = tf.import_graph_def(needed, return_elements=[variant.name], name='')
  structure = dataset._element_structure if IS_1 else dataset.element_spec
  return dataset_ops.DatasetV1Adapter(dataset_ops._VariantDataset(copied, structure))
