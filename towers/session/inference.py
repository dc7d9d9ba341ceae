"""Inference: what a model computes of any examples, on the same towers, without training.

  examples, arrays or batches ──► rows for each tower ──► the model, or a function
                                                  └─► means of metrics, or outputs in order

It has a graph and a session of its own, on the devices of the towers: nothing of a training
session moves, and a last batch of any size is fine, since batches are fed.
"""

import contextlib
import functools
import itertools
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from towers.base.checksums import INDEX
from towers.base.output import write_line
from towers.base.paths import read_path
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import find_best, list_steps, path_of
from towers.checkpoint.restore import restore_weights
from towers.coupling.comparison import find_share
from towers.coupling.first_difference import LEAST
from towers.graph.ordered_sum import add_all
from towers.graph.walk import find_needed
from towers.input.batch import Batch
from towers.input.plan import dealt
from towers.placement.devices import Devices, build_devices, build_session_config
from towers.placement.host import HOST
from towers.placement.randomness import is_random
from towers.placement.set_values import keep_set_values
from towers.placement.variables import VariableStore
from towers.session.predict_function import call_predict, name_function, name_outputs
from towers.session.rows import Rows, describe_part, open_rows
from towers.session.validation_pass import ValidationPass
from towers.settings.arguments import check_model
from towers.tensorflow_v1 import RUN_ERRORS, Operation, tf
from towers.tower.all_towers import join_sums
from towers.tower.drawing.draws import begin_draws, shift_of
from towers.tower.forward_pass import build_forward, build_outputs
from towers.tower.global_batch import join_batches
from towers.tower.model_call import Model, ModelCall
from towers.tower.precision import build_precision
from towers.tower.recording import record_tower
from towers.tower.tower import Tower
from towers.validation import fetch_measured, stack_sums
from towers.warm_start.first_batch import find_late, start_from_zeros
from towers.warm_start.warm_start import load_values
from towers.whole import WholeRows

# Of an output, by which no rounding changes it.
_MOST_ROUNDED = 1e-3


def evaluate(folder: str, model: Model, examples: Any, *, batch_size: int = 64,
             num_towers: Optional[int] = None, device: str = 'auto', precision: str = 'float32',
             batch_norm: str = 'first', best: bool = True, best_metric: Optional[str] = None,
             seed: int = 0) -> Dict[str, float]:
  """Returns the mean of 'loss' and of each metric of a run's model over examples.

    towers.evaluate('checkpoints', model, towers.from_arrays(images, labels))

  Args:
    folder: of checkpoints; or the path of one.
    model: the model that the run has trained, see `towers.Program`.
    examples: as for `Session.evaluate`.
    batch_size: rows at a time, over all towers; with the run's own, and its seed, a model that
      draws random numbers draws those of its validation.
    num_towers, device, precision, batch_norm, seed: see `towers.Program`.
    best: whether to take the weights of the best validation, and not the newest.
    best_metric: of the validations; None for that of the run.

  Raises:
    UsageError: there is no checkpoint, or it or the examples do not fit the model.
  """
  path = folder = read_path(folder, line="towers.evaluate('checkpoints', model, examples)")
  check_model(model)
  if not os.path.exists(folder + INDEX):
    step = find_best(folder, best_metric)
    path = path_of(folder, step if best else max(list_steps(folder)))
  with open_rows(examples, batch_size) as rows:
    devices = build_devices(num_towers, device)
    measured = open_for_any(functools.partial(
        Forward, model, rows.template, devices=devices, is_model=True, precision=precision,
        batch_norm=batch_norm, seed=seed, batch_size=batch_size),
                             [-(-batch_size // len(devices.names))])
    with contextlib.closing(measured):
      measured.restore(path)
      return measured.measure(rows)


class Forward:
  """A model, or a function of a batch, on towers in an open session of its own.

  Attributes:
    variables: of its graph, by name.
    version: of the weights that it has, as `ForwardCache` counts them; None before any.
  """

  def __init__(self, compute: Callable[..., Any], template: Any, *, devices: Devices,
               is_model: bool, batch_size: int, seed: int, variables: str = 'host',
               precision: str = 'float32', batch_norm: str = 'first',
               num_rows: Optional[int] = None, counts: str = 'filled'):
    """Builds it, with variables of any values.

    Args:
      compute: if it `is_model`, a `towers.Model`; or a function as for `towers.export`.
      template: of the batches, see `Rows`.
      batch_size: of a global batch, into which the rows of a pass fall, in whatever batches they
        come: what is drawn for a row depends on its place there.
      num_rows: of each tower in each run, for a net that needs a number; None for any.
      counts: of such a run: 'filled' up by rows that do not count, 'none or all' of a tower's rows,
        or 'all', where the model takes the number of all towers' rows too.
    """
    placement = 'first' if variables == 'replicated' else variables
    names = devices.names
    self._is_model, self._num_rows, self._batch_size = is_model, num_rows, batch_size
    self._counts = counts
    self.version: Any = None
    self._function, self._is_compared = name_function(compute), is_model
    with tf.Graph().as_default() as graph, keep_set_values():
      store = VariableStore(devices=names, placement=placement, seed=seed, makes_all=True)
      half = build_precision(precision, devices=names, loss_scale=1.0)
      self._batches, self._fed = [], []
      for device in names:
        with tf.device(device):
          tensors = tf.nest.map_structure(lambda part: tf.placeholder(
              part.dtype, [num_rows, *describe_part(part)[1]]), template)
        with tf.device(HOST):
          count = tf.placeholder(tf.int32, [])
          self._batches.append(Batch(tensors, num_rows if counts == 'all' else count,
                                     may_be_empty=counts != 'all',
                                     is_padded=num_rows is not None and counts == 'filled'))
          self._fed.append([*tf.nest.flatten(tensors), count])
      with tf.device(HOST):
        begin, shift = (tf.placeholder(tf.int64, [], name) for name in ('begin', 'shift'))
      draws = begin_draws(store.seed, lambda: begin, lambda: shift)
      whole = join_batches(self._batches, batch_norm=batch_norm)
      call = ModelCall(compute, store, whole, draws, precision=half)
      if is_model:
        towers: List[Tower] = []
        for batch, device in zip(whole.batches, names):
          towers.append(build_forward(call, batch, record_tower(device), index=len(towers)))
          store.scopes.append(towers[-1].scope)
        join_sums(towers)
        self._towers = towers
        with tf.device(HOST):
          self._fetches: Any = fetch_measured(add_all([*map(stack_sums, towers)]), towers)
      else:
        call = call._replace(model=lambda batch, is_training: name_outputs(
            compute, call_predict(compute, batch)))
        self._fetches = [build_outputs(call, batch, device, index=index)
                         for index, (batch, device) in enumerate(zip(whole.batches, names))]
        # As by tf.squeeze, which leaves one row alone without its axis.
        self._squeezed = {name for name, tensor in self._fetches[0].items()
                          if tensor.shape.ndims is None}
    # Of a run whose model draws: the place of its first row, and the shift of its global batch.
    self._begin, self._shift = (number if number.consumers() else None for number in (begin, shift))
    self._choose = functools.lru_cache(maxsize=None)(self._choose_fetches)
    with graph.as_default():
      start_from_zeros(find_late([batch.tensors for batch in self._batches]))
      self.variables = {variable.op.name: variable for variable in tf.global_variables()}
      self._session = tf.Session(graph=graph, config=build_session_config(devices))
      self._session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                         tf.tables_initializer()])

  def load(self, values: Iterable[np.ndarray]) -> None:
    """Gives the variables their values, in the order of `variables`."""
    load_values(self._session, dict(zip(self.variables.values(), values)))

  def restore(self, path: str) -> None:
    """Gives the variables the weights of a checkpoint, or their averages."""
    with self._session.graph.as_default():
      restore_weights(self._session, path)

  def measure(self, rows: Rows) -> Dict[str, float]:
    """Returns the mean of the loss and of each metric that has one over all rows."""
    gathered = WholeRows([tower.wholes for tower in self._towers])
    measured = ValidationPass(self._towers[0], gathered, num_steps=0, step=0)
    for (sums, *values), _ in self._run(rows, itertools.count()):
      measured.add(sums, values)
    return measured.means(leaves_out=True)

  def predict(self, rows: Rows, numbers: Iterator[int]) -> Dict[str, Any]:
    """Returns the outputs for each row, in order, by name; as lists where rows differ in size.

    Of the `numbers` each global batch takes one, by which it draws others than those before.
    """
    parts: Dict[str, List[np.ndarray]] = {}
    for of_towers, counts in self._run(rows, numbers):
      for outputs, count in zip(of_towers, counts):
        for name, values in outputs.items():
          num_rows = self._num_rows or max(count, 1)
          if num_rows == 1 and np.shape(values)[:1] != (1,) and name in self._squeezed:
            values = np.asarray(values)[None]
          if len(values) != num_rows:
            raise UsageError(f'The output {name!r} has {len(values)} rows for {num_rows} '
                             'examples: return one row for each example. The function takes the '
                             'parts of an example as its arguments, as (images, labels).')
          parts.setdefault(name, []).append(values[:count])
    return {name: np.concatenate(values) if len({value.shape[1:] for value in values}) == 1
            else [row for value in values for row in value] for name, values in parts.items()}

  def close(self) -> None:
    """Closes the session."""
    self._session.close()

  def _run(self, rows: Rows, numbers: Iterator[int]) -> Iterator[Tuple[Any, List[int]]]:
    """Yields what is fetched for each batch, and how many rows each tower has of it.

    The first towers have the rows; of few rows, the outputs of the others are not fetched.
    """
    num_towers, shift = len(self._batches), 0
    for place, arrays in self._cut(rows.batches):
      counts = self._deal(len(arrays[0]))
      if not len(arrays[0]):  # Of zeros, or of the empty text.
        arrays = [np.full((1, *part.shape[1:]), b'' if part.dtype.kind in 'OSU' else 0, part.dtype)
                  for part in arrays]
      fetches, needed = self._choose(max(1, num_towers - counts.count(0)))
      if place == 0:
        shift = shift_of(next(numbers))
      feed_dict: Dict[Any, Any] = {
          number: value for number, value in ((self._begin, place), (self._shift, shift))
          if number is not None}
      first = 0
      for fed, count in zip(self._fed, counts):
        # A tower without a row gets one all the same, which does not count.
        taken: Any = slice(first, first + count) if count else slice(0, 1)
        if self._num_rows:  # Filled up with its last row.
          taken = taken.start + np.minimum(np.arange(self._num_rows), max(count, 1) - 1)
        values = [*(array[taken] for array in arrays), count]
        for tensor, array in zip(fed, arrays):
          if not tensor.shape[1:].is_compatible_with(array.shape[1:]):
            raise UsageError(f'A batch has rows of the shape {list(array.shape[1:])}, and the '
                             f'first has {tensor.shape.as_list()[1:]}: give batches of one shape, '
                             'such as padded ones, or each in a call of its own.')
        feed_dict.update(pair for pair in zip(fed, values) if pair[0].op in needed)
        first += count
      found = self._session.run(fetches, feed_dict)
      if not self._is_compared and counts[0] > 1:
        self._compare(functools.partial(self._session.run, fetches), needed, feed_dict, found[0])
      yield found, counts

  def _compare(self, run, needed, feed_dict, found):
    """Warns once if the first row has another output where all rows of its tower are as it is.

    The shapes are the same, so that rounding is too; what differs in each run says nothing.
    """
    rows = {part: feed_dict[part] for part in self._fed[0][:-1] if part in feed_dict}
    first = {part: np.repeat(array[:1], len(array), axis=0) for part, array in rows.items()}
    if all(np.array_equal(array, first[part]) for part, array in rows.items()):
      return  # Other rows may tell.
    self._is_compared = True
    if any(map(is_random, needed)):  # A run more would change what it draws.
      return
    with contextlib.suppress(*RUN_ERRORS):  # Such as of a check for what is not finite.
      beside = run({**feed_dict, **first})[0]
      for name, values in found.items():
        if _differ(values, beside[name]) and not _differ(values, run(feed_dict)[0][name]):
          write_line(f'WARNING: the {self._function} computes {name!r} of a row from the rows '
                     'beside it too, so that it depends on batch_size and num_towers. Compute each '
                     'row by itself: axis=-1 in place of 0, training=False in batch normalisation.')
          break

  def _deal(self, size):
    """Returns how many of a batch's rows each tower has."""
    num_towers, num_rows = len(self._batches), self._num_rows or 1
    if self._counts == 'filled':
      return [dealt(size, tower, num_towers) for tower in range(num_towers)]
    unit = num_rows * (num_towers if self._counts == 'all' else 1)
    if size % unit:
      raise UsageError(
          f'The model takes batches of {unit} rows alone, and its loss is a scalar, the mean '
          f'over a batch, of which one has {size % unit}: give as many examples as {unit} '
          'divides, or return one loss per example, [batch].')
    return [num_rows if tower * num_rows < size else 0 for tower in range(num_towers)]

  def _cut(self, batches):
    """Yields batches, or the parts of them that towers of so many rows can take, each behind the
    place where it begins; where the model draws, a part is in one global batch."""
    place = 0
    for arrays in batches:
      size, first = len(arrays[0]), 0
      while first < max(size, 1):
        count = (self._num_rows or size or 1) * len(self._batches)
        if self._begin is not None:
          count = min(count, self._batch_size - place)
        yield place, [array[first:first + count] for array in arrays]
        place = (place + min(count, size - first)) % self._batch_size
        first += count

  def _choose_fetches(self, num_filled: int) -> Tuple[Any, Set[Operation]]:
    """Returns what to fetch where so many of the first towers have rows, and the ops it needs."""
    fetches = self._fetches if self._is_model else self._fetches[:num_filled]
    return fetches, find_needed([tensor.op for tensor in tf.nest.flatten(fetches)])


def _differ(*outputs):
  """Whether the first rows of two outputs are numbers that differ by more than rounding."""
  ours, theirs = (np.atleast_1d(values)[:1] for values in outputs)
  return (ours.dtype.kind in 'fiub' and ours.shape == theirs.shape and
          find_share(ours, theirs, LEAST) > _MOST_ROUNDED)


def open_for_any(build: Callable[..., Forward], sizes: Sequence[Any]) -> Forward:
  """Returns a `Forward` for any number of rows; of a net that needs a number, for the largest."""
  try:
    return build()
  except Exception:  # The model and the function may raise anything.
    if None in sizes:
      raise
    for counts in ('filled', 'none or all', 'all'):
      with contextlib.suppress(Exception):
        return build(num_rows=max(sizes), counts=counts)
    raise
