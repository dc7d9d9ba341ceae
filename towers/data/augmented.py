"""Examples that a function changes at random, anew in each epoch.

A random op of TensorFlow in `parse` or `map` draws in the order in which threads happen to ask, and
never resumes. Here each example draws by its own number, see `draws`.

  elements ──► read or gathered ──► examples ─┐
         └──► numbers ──────────────► draws ──┴─► function ──► examples
"""

from typing import Any, Callable

from towers.base.usage_error import UsageError
from towers.data.draws import Draws
from towers.data.examples import Examples

_SEEDS_APART = 7919


def augmented(examples: Examples, function: Callable[[Any, Draws], Any], *, seed: int = 0,
              of_batches: bool = False) -> Examples:
  """Returns a split whose examples are changed at random, anew in each epoch.

    def augment(example, draws):
      image, label = example
      return draws.flip(draws.crop(image, [24, 24])), label

    train = towers.augmented(towers.from_arrays(images, labels), augment)

  What is drawn depends on the seed, the epoch and the number of the example alone: it is the same
  in every input mode and on any number of towers, and after a resume.

  Args:
    examples: of arrays, records, a data set or a folder.
    function: from an example and its draws, `uniform`, `normal`, `integer`, `crop` and `flip`, to
      another example. It runs as written, without autograph: where a tensor decides, use `tf.cond`.
    seed: of the draws.
    of_batches: whether the function takes a batch, each tensor `[batch, ...]`, and draws for each
      example of it: faster for small examples. Only for arrays of equal rows.

  Raises:
    UsageError: `of_batches` of other examples.
  """
  # Each of several functions over one split draws other numbers.
  depth = 1 + getattr(examples.parse_batch or examples.read, 'augmentations', -1)
  seed += depth * _SEEDS_APART
  if of_batches:
    if not examples.parse_batch or examples.elements or examples.read or examples.parse_example:
      raise UsageError(f'{examples.name}: of_batches=True is for examples of towers.from_arrays, '
                       'whose rows have one shape: leave it out, and the function gets single '
                       'examples.')
    gather, knows_epoch = examples.parse_batch, examples.takes_epoch

    def parse_batch(indices, *tensors, epoch):
      batch = gather(indices, *tensors, **(dict(epoch=epoch) if knows_epoch else {}))
      return _call_checked(function, batch, Draws(indices, epoch=epoch, seed=seed), examples.name)

    parse_batch.augmentations = depth  # type: ignore[attr-defined]
    return examples._replace(parse_batch=parse_batch, takes_epoch=True)

  if examples.elements is not None:
    examples = _numbered(examples)

  def reader(read, has_number):
    if read is None:
      return None

    def read_augmented(elements, *arrays, epoch, parallel_calls):
      from tensorflow_v1 import as_written, tf

      def change(example, *element):
        index = element[0]
        is_good = ()
        if examples.marks_bad:
          example, *is_good = example
        changed = _call_checked(function, example, Draws(index, epoch=epoch, seed=seed),
                                examples.name)
        return (changed, *is_good) if examples.marks_bad else changed

      made = read(elements, *arrays, epoch=epoch, parallel_calls=parallel_calls)
      numbers = elements.map(as_written(lambda number, *_: number)) if has_number else elements
      return tf.data.Dataset.zip((made, numbers)).map(as_written(change),
                                                      num_parallel_calls=parallel_calls)

    read_augmented.augmentations = depth  # type: ignore[attr-defined]
    return read_augmented

  has_number = examples.elements is not None
  read = examples.read or _read_one_by_one(examples)
  return examples._replace(
      parse_example=None, parse_batch=None, takes_epoch=False, is_gathered=False,
      read=reader(read, has_number), read_unequal=reader(examples.read_unequal, has_number))


def _call_checked(function, example, draws, name):
  """Returns what the function makes of an example; refuses other draws than those it is given."""
  from tensorflow_v1 import tf
  from towers.placement.randomness import is_random
  graph = tf.get_default_graph()
  num_ops = len(graph.get_operations())
  changed = function(example, draws)
  for op in graph.get_operations()[num_ops:]:
    if is_random(op):
      raise UsageError(f'{name}: {op.name} ({op.type}) draws by a state of its own in a function '
                       'of towers.augmented, which would be other numbers on other towers and '
                       'after a resume: draw by draws.uniform, .normal, .integer, .crop or .flip.')
  return changed


def _numbered(examples):
  """Returns examples whose elements begin with their number, which `read` leaves out again."""
  if getattr(examples.read, 'augmentations', None) is not None:
    return examples  # They do already.
  make, hold, read = examples.elements, examples.hold, examples.read or _read_one_by_one(examples)

  def elements(*arrays):
    from tensorflow_v1 import tf
    made = make(*arrays)
    return tf.data.Dataset.zip((tf.data.Dataset.range(examples.num_examples), made))

  def read_numbered(numbered, *arrays, **settings):
    from tensorflow_v1 import as_written
    return read(numbered.map(as_written(lambda _, element: element)), *arrays, **settings)

  return examples._replace(
      elements=elements, read=read_numbered, parse_example=None,
      hold=hold and (lambda number, element: (number, _call(hold, element))))


def _read_one_by_one(examples):
  """Returns the `read` of examples that have none."""
  parse, gather = examples.parse_example, examples.parse_batch
  knows_epoch = examples.takes_epoch

  def read(elements, *arrays, epoch, parallel_calls):
    from tensorflow_v1 import as_written
    if parse is not None:
      return elements.map(parse, num_parallel_calls=parallel_calls)
    if gather is None:
      return elements
    settings = dict(epoch=epoch) if knows_epoch else {}
    return elements.map(as_written(lambda *element: _first_of(
        gather(*(part[None] for part in element), *arrays, **settings))),
        num_parallel_calls=parallel_calls)

  return read


def _first_of(batch):
  from tensorflow_v1 import tf
  return tf.nest.map_structure(lambda tensor: tensor[0], batch)


def _call(function, element):
  """Calls a function of what a data set gives its functions: a tuple is taken apart."""
  return function(*element) if isinstance(element, tuple) else function(element)
