"""Forward cache: what a session was asked to compute of other examples, open for the next time.

A training session keeps a few `Forward`s open, and copies its weights there only when they may have
changed since: so one row costs little more than a run.
"""

import contextlib
import functools
import itertools
from typing import Any, Callable, List, Tuple

from towers.base.usage_error import UsageError
from towers.data.composite import find_paths
from towers.session.inference import Forward, open_for_any
from towers.session.rows import Rows, describe_part, draw_structure
from towers.tensorflow_v1 import Call, tf

# By a session: each holds a copy of the weights.
_MOST_KEPT = 4


class ForwardCache:
  """The models and functions that a session was last asked for, each in an open `Forward`.

  Attributes:
    numbers: of the global batches that functions have been asked for.
  """

  def __init__(self, program: Any):
    self._program = program
    self._kept: List[Tuple[Any, Forward]] = []  # By key, the newest at the end.
    self.numbers = itertools.count()
    self._prepare_read = functools.lru_cache(maxsize=None)(self._build_read)

  def find(self, compute: Callable[..., Any], rows: Rows, engine: Any, *,
           is_model: bool) -> Forward:
    """Returns a model, or a function of a batch, with the weights that a session has now."""
    program, trained = self._program, self._program.feed.templates[0].tensors
    _check_batch_axis(rows.template, trained)
    if rows.may_vary:
      rows = rows._replace(template=_open_axes(rows.template, trained))
    key = compute, is_model, str(tf.nest.map_structure(describe_part, rows.template))
    with _comparing(rows.template, trained, is_model):
      kept = next((kept for kept in self._kept if kept[0] == key), None)
      if kept is None:
        if len(self._kept) == _MOST_KEPT:
          self._kept.pop(0)[1].close()
        kept = key, open_for_any(
            functools.partial(
                Forward, compute, rows.template, devices=program.devices, is_model=is_model,
                batch_size=program.plan.batch_size, seed=program.given.seed,
                variables=program.given.variables, precision=program.given.precision,
                batch_norm=program.given.batch_norm),
            [tower.batch.num_rows for tower in program.towers])
      else:
        self._kept.remove(kept)
      self._kept.append(kept)
      _, forward = kept
      version = engine.runs, engine.session.num_runs  # Others if variables changed.
      if forward.version != version and forward.variables:
        # By a call, which is no new version.
        forward.load(self._prepare_read(tuple(forward.variables), engine.session)())
        forward.version = version
    return forward

  def _build_read(self, names, session):
    """Returns a function that reads variables by name, averages of weights in their place."""
    graph, averages = self._program.graph, self._program.averages
    with graph.as_default():
      variables = {variable.op.name: variable for variable in tf.global_variables()}
    others = sorted(set(names) - set(variables))
    if others:
      raise UsageError(f'{others[0]} is no variable of the program, so that it has no value: make '
                       'the variables by the same names as the model does.')
    variables.update(averages.variables if averages else {})
    return Call(session, [graph.as_graph_element(variables[name]) for name in names]).prepare()

  def close(self) -> None:
    """Closes all sessions."""
    while self._kept:
      self._kept.pop()[1].close()


def _name_parts(batch):
  return dict(zip(find_paths(batch), tf.nest.flatten(batch)))


def _open_axes(given, trained):
  """Returns the shapes of what is given, open where the program trains on any size."""
  parts, opened = _name_parts(trained), []
  for path, part in _name_parts(given).items():
    own, sizes = parts.get(path), list(part.shape)
    if own is not None and own.shape.ndims == len(sizes):
      sizes = [None if open_ is None else size for open_, size in zip(own.shape.as_list(), sizes)]
    opened.append(tf.TensorSpec(sizes, part.dtype))
  return tf.nest.pack_sequence_as(given, opened)


def _check_batch_axis(given, trained):
  """Refuses one example in place of a batch, whose first dimension would count as examples."""
  parts = _name_parts(trained)
  for path, part in _name_parts(given).items():
    other = parts.get(path or '0', parts.get(''))
    row = None if other is None else tf.TensorShape(other.shape)[1:]
    # A tensor is of examples, which have been batched.
    if row is not None and row.ndims and not tf.is_tensor(part) and (
        row.is_compatible_with(part.shape)):
      shape = list(part.shape)
      raise UsageError(f'The examples have the shape {shape}, as one of the program has without a '
                       f'batch axis: give {[1, *shape]}, x[:1] in place of x[0].')


@contextlib.contextmanager
def _comparing(given, trained, is_model):
  """Explains an error on parts that the program trains otherwise; a function may lack some."""
  try:
    yield
  except Exception as error:  # The model and the function may raise anything.
    if isinstance(error, UsageError) and error.__cause__ is None:
      raise
    parts, own = _describe_parts(given), _describe_parts(trained)
    if parts == own or not is_model and parts.items() <= own.items():
      raise
    less = '' if is_model else ', the last of which may be missing where a function takes fewer'
    raise UsageError(f'The examples have the parts {_join(parts)}, and those that the program '
                     f'trains on {_join(own)}: give the same structure, dtypes and shapes, as '
                     f'{draw_structure(trained)}{less}. It fails by {type(error).__name__}: '
                     f'{error}') from error


def _describe_parts(batch):
  parts = {path: describe_part(part) for path, part in _name_parts(batch).items()}
  return {path: f'{dtype} {[None, *sizes]}'.replace('None', '?')
          for path, (dtype, sizes) in parts.items()}


def _join(parts):
  return ', '.join(f'{path}: {part}'.lstrip(': ') for path, part in parts.items())
