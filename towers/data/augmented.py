"""Examples that a function changes at random, anew in each epoch.

A random op of TensorFlow in `parse` or `map` draws in the order in which threads happen to ask, and
never resumes. Here each example draws by its own number, see `example_draws`.

  elements ──► read or gathered ──► examples ─┐
         └──► numbers ──────────────► draws ──┴─► function ──► examples

A flag names these changes of images:

  none       as they are
  cifar      padded by 4 zeros on each side, cropped at random, mirrored half of the time
             (He et al. 2016, section 4.2)
  imagenet   of encoded images alone, which towers-data reads

Validation always takes images as they are, or their middle.
"""

from typing import Any, Callable

from towers.base.later import as_written, data_sets, tf
from towers.base.usage_error import UsageError, check_parameters
from towers.data.components import naming_errors
from towers.data.dataset_ops import no_python_draws
from towers.data.example_draws import Draws, take_windows
from towers.data.examples import Examples

KINDS = ('none', 'cifar', 'imagenet')

_PADDING = 4
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
  check_parameters(function, 'the function of towers.augmented', 'example', 'draws',
                   fix='write def augment(example, draws), and unpack the example')
  if of_batches and (not examples.parse_batch or examples.elements or examples.read or
                     examples.parse_example):
    raise UsageError(f'{examples.name}: of_batches=True is for examples of towers.from_arrays, '
                     'whose rows have one shape: leave it out, and the function gets single '
                     'examples.')

  def change(example, numbers, epoch):
    own_seed = seed + examples.augmentations * _SEEDS_APART
    draws = Draws(numbers, epoch=epoch, seed=own_seed)
    return _call_checked(function, example, draws, examples.name, rows=numbers.shape[:1])

  changed = _change_batches(examples, change) if of_batches else _change_singly(examples, change)
  unequal = examples.unequal and augmented(examples.unequal, function, seed=seed)
  return changed._replace(augmentations=examples.augmentations + 1, unequal=unequal,
                          is_untried=of_batches or examples.is_untried)


def _change_batches(examples, change):
  """Returns a split of arrays whose batches are changed by `change(batch, numbers, epoch)`."""
  def parse_batch(indices, *arrays, epoch):
    return change(examples.parse_together([indices], arrays, epoch=epoch), indices, epoch)

  return examples._replace(parse_batch=parse_batch, takes_epoch=True)


def _change_singly(examples, change):
  """Returns a split whose examples are changed by `change(example, number, epoch)`."""
  has_number = examples.elements is not None
  if has_number and not examples.augmentations:
    examples = _numbered(examples)

  def read(elements, *arrays, epoch, parallel_calls):
    def change_one(example, number):
      if not examples.marks_bad:
        return change(example, number, epoch)
      example, is_good = example
      return change(example, number, epoch), is_good

    made = make_singly(examples, elements, arrays, epoch, parallel_calls)
    numbers = elements.map(as_written(lambda number, *_: number)) if has_number else elements
    return tf.data.Dataset.zip((made, numbers)).map(as_written(change_one),
                                                    num_parallel_calls=parallel_calls)

  return examples._replace(read=read, parse_example=None, parse_batch=None, takes_epoch=False,
                           is_gathered=False)


def drawn_alike(examples: Examples) -> Examples:
  """Returns a split that draws in each epoch what it draws in the first one, to validate on."""
  def of_first(make):
    return make and (lambda *args, epoch, **settings: make(*args, epoch=epoch * 0, **settings))

  return examples._replace(
      read=of_first(examples.read), unequal=examples.unequal and drawn_alike(examples.unequal),
      parse_batch=of_first(examples.parse_batch) if examples.takes_epoch else examples.parse_batch)


def _call_checked(function, example, draws, name, *, rows):
  """Returns what the function makes of an example, or of a batch, whose shape begins with `rows`.

  Refuses a part of it, other rows, and other draws than those it is given.
  """
  from towers.placement.randomness import is_random
  graph = tf.get_default_graph()
  num_ops = len(graph.get_operations())
  of, who = 'a batch' if rows.ndims else 'an example', f'{name}: the function of towers.augmented'
  with naming_errors(example, who, of), no_python_draws(who):
    changed = function(example, draws)
  if changed is None or tf.is_tensor(changed) and len(tf.nest.flatten(example)) > 1:
    what = 'None' if changed is None else 'one tensor of an example of several'
    raise UsageError(f'{who} returned {what}: return the whole example, as image, label.')
  for op in graph.get_operations()[num_ops:]:
    if is_random(op):
      raise UsageError(f'{name}: {op.name} ({op.type}) draws by a state of its own in a function '
                       'of towers.augmented, which would be other numbers on other towers and '
                       'after a resume: draw by draws.uniform, .normal, .integer, .crop or .flip.')
  for index, part in enumerate(data_sets.flatten_element(changed) if rows.ndims else ()):
    shape = tf.convert_to_tensor(part).shape
    if isinstance(part, list) or not shape[:1].is_compatible_with(rows):
      raise UsageError(f'{who} returned the shape {shape} as component {index} of a batch of '
                       f'{rows[0]}: return a row for each example; or leave of_batches=True out, '
                       'and it gets single examples.')
  return changed


def _numbered(examples):
  """Returns examples whose elements begin with their number, which `read` leaves out again."""
  def elements(*arrays):
    numbers = tf.data.Dataset.range(examples.num_examples)
    return tf.data.Dataset.zip((numbers, examples.elements(*arrays)))

  def read(numbered, *arrays, epoch, parallel_calls):
    plain = numbered.map(as_written(lambda _, element: element))
    return make_singly(examples, plain, arrays, epoch, parallel_calls)

  return examples._replace(elements=elements, read=read, parse_example=None, parse_batch=None)


def make_singly(examples, elements, arrays, epoch, parallel_calls):
  """Returns all that a split makes of its elements, one by one."""
  made = examples.parse_singly(elements, arrays, epoch=epoch, parallel_calls=parallel_calls)
  if examples.parse_batch is None:
    return made

  def gather(*element):
    batch = tf.nest.map_structure(lambda part: part[None], element)
    made = examples.parse_together(batch, arrays, epoch=epoch)
    return tf.nest.map_structure(lambda tensor: tensor[0], made)

  return made.map(as_written(gather), num_parallel_calls=parallel_calls)


def augment_arrays(examples: Examples, *, kind: str, seed: int) -> Examples:
  """Returns a split of arrays (images, labels), augmented."""
  if kind == 'none':
    return examples
  if kind != 'cifar':
    raise UsageError(f'{examples.name}: augment={kind} crops images of any size before they are '
                     'resized, and these arrays have one size already: use augment=cifar, which '
                     'shifts and mirrors them.')

  def augment(batch, draws):
    images, labels = batch
    return pad_crop_mirror(images, draws.uniform([3])), labels

  # By rows, so that no start need try it.
  return augmented(examples, augment, seed=seed, of_batches=True)._replace(
      is_untried=examples.is_untried)


def pad_crop_mirror(images: Any, draws: Any) -> Any:
  """Returns the images, each shifted by up to 4 pixels into zeros, half of them mirrored.

  Of these, `[batch, height, width, channels]`, all but the batch is known; the draws are uniform in
  [0, 1), float32 `[batch, 3]`.
  """
  padded = tf.pad(images, [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]])
  shifts = tf.cast(draws[:, :2] * (2 * _PADDING + 1), tf.int32)
  return take_windows(padded, shifts[:, 0], shifts[:, 1], images.shape.as_list()[1:3],
                      is_mirrored=draws[:, 2] < 0.5)
